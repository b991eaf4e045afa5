"""The property list of a launchd job: an agent of one user, or a daemon of the machine."""

from __future__ import annotations

import plistlib
from pathlib import Path
from typing import Any

from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.plan import OPEN_FILES, ServicePlan

LABEL = "org.mlxd.daemon"
THROTTLE_SECONDS = 30
"""After a crash the next start comes this many seconds after the last one, at the earliest."""

_UMASK = 0o077


def agent(plan: ServicePlan, home: Path) -> bytes:
    """The job of the user with this home folder, which has to be absolute: launchd expands nothing.

    Raises ServiceFailed for a path or a value that no property list can hold.
    """
    return _dumped(_job(plan, log_folder(home)) | {"WorkingDirectory": str(home)})


def launch_daemon(plan: ServicePlan, user: str, logs: Path) -> bytes:
    """The job of the machine, run as `user`, who has to be able to write to the folder `logs`. Raises as `agent`."""
    return _dumped(_job(plan, logs) | {"UserName": user})


def log_folder(home: Path) -> Path:
    """Where the agent's logs are."""
    return home / "Library" / "Logs" / "mlxd"


def _job(plan: ServicePlan, logs: Path) -> dict[str, Any]:
    files = {"NumberOfFiles": OPEN_FILES}
    job: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": list(plan.command),
        "RunAtLoad": True,
        # not after an exit, whatever its code: what makes the daemon exit is there at the next start, too
        "KeepAlive": {"Crashed": True},
        "ThrottleInterval": THROTTLE_SECONDS,
        "ExitTimeOut": plan.stop_seconds,
        "ProcessType": "Interactive",
        "SoftResourceLimits": files,
        "HardResourceLimits": files,
        "Umask": _UMASK,
        # last words only; the log is a file that the daemon rotates itself
        "StandardOutPath": str(logs / "launchd.log"),
        "StandardErrorPath": str(logs / "launchd.log"),
    }
    log = {} if plan.has_log_file else {"MLXD_LOG__FILE": str(logs / "mlxd.log")}
    return job | {"EnvironmentVariables": {**plan.environ, **log, "MLXD_LOG__STDERR": "false"}}


def _dumped(job: dict[str, Any]) -> bytes:
    try:
        return plistlib.dumps(job, sort_keys=False)
    except ValueError as error:
        raise ServiceFailed(f"a property list cannot hold a value of this: {error}") from error
