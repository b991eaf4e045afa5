"""Finds the service manager of this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.launchd import Launchd
from mlxd.daemon.service.state import ServiceManager
from mlxd.daemon.service.systemd import Systemd
from mlxd.daemon.service.tools import Run

_LINGER = Path("/var/lib/systemd/linger")


def manager_of(platform: str, environ: Mapping[str, str], uid: int, run: Run) -> ServiceManager:
    """The manager for a user's services; `platform` is `sys.platform`. Raises ServiceFailed where there is none."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "darwin":
        return Launchd(run, home, uid, time.sleep)
    if platform.startswith("linux"):
        user = environ.get("LOGNAME") or environ.get("USER") or str(uid)
        return Systemd(run, Path(environ.get("XDG_CONFIG_HOME") or home / ".config"), _LINGER / user)
    raise ServiceFailed(f"there is no service manager for {platform} that mlxd knows; run `mlxd serve` under yours")
