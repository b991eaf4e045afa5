"""Writes the plain service files of this folder, as `mlxd service install` would for a user yet to be named.

`make service-files` runs it.
"""

from pathlib import Path

from mlxd.daemon.service.launchd_plist import LABEL, agent, launch_daemon
from mlxd.daemon.service.plan import ServicePlan, wait_for_stop
from mlxd.daemon.service.systemd import UNIT
from mlxd.daemon.service.systemd_unit import system_unit, user_unit
from mlxd.daemon.settings import Settings

# launchd expands nothing, so these are to be replaced by whoever installs a plain file.
HOME = "/HOME_FOLDER"
USER = "USER_NAME"

STOP = wait_for_stop(Settings())
USERS = ServicePlan((f"{HOME}/.local/bin/mlxd",), STOP)
MACHINES = ServicePlan(("/usr/local/bin/mlxd",), STOP, config=Path("/etc/mlxd/mlxd.toml"))

FILES = {
    UNIT: user_unit(USERS).replace(HOME, "%h").encode(),
    f"{LABEL}.plist": agent(USERS, Path(HOME)).replace(HOME.encode(), HOME[1:].encode()),
    f"system/{UNIT}": system_unit(MACHINES, "mlxd").encode(),
    f"system/{LABEL}.plist": launch_daemon(MACHINES, USER, Path("/Library/Logs/mlxd")),
}

if __name__ == "__main__":
    for name, content in FILES.items():
        (Path(__file__).parent / name).write_bytes(content)
