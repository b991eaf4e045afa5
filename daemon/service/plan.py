"""What a service manager is told of an installation, whichever manager it is."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlxd.daemon.settings import Settings
from mlxd.daemon.stop_time import stop_seconds
from mlxd.daemon.units import Size

OPEN_FILES = 8192
"""Files that the daemon may have open: connections, models, pipes of its workers."""

# They say where models are. A service gets no other variable of the shell that installs it.
_KEPT = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """How to start the daemon, and how many seconds its stop may take.

    `program` is the command up to "serve". `config` is None where the daemon looks for its file itself.
    `has_log_file` when the configuration names a file for the log.
    """

    program: tuple[str, ...]
    stop_seconds: int
    config: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    memory_max: Size | None = None
    has_log_file: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command line."""
        named = ("--config", str(self.config)) if self.config is not None else ()
        return (*self.program, "serve", *named)


def wait_for_stop(settings: Settings) -> int:
    """Whole seconds that a manager has to give a daemon with these settings between SIGTERM and SIGKILL."""
    return math.ceil(stop_seconds(settings))


def own_program() -> tuple[str, ...]:
    """The command that runs this installation of mlxd."""
    script = Path(sys.executable).with_name("mlxd")
    return (str(script),) if os.access(script, os.X_OK) else (sys.executable, "-m", "mlxd.daemon")


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """What a service takes over from the environment of whoever installs it."""
    return {name: environ[name] for name in _KEPT if environ.get(name)}


def lost_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that set keys of the configuration here, and will not where the service runs."""
    return sorted(name for name in environ if name.startswith("MLXD_") and "__" in name)
