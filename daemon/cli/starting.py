"""Starts the daemon in the foreground: its configuration, its BLAS, and then itself."""

# The daemon itself is imported last: a process that starts again for its BLAS has no use for it.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from mlxd.daemon.blas import BlasPlan, SystemBlas, plan_blas, reexec
from mlxd.daemon.cli.failures import BadConfig
from mlxd.daemon.config import ConfigError
from mlxd.daemon.config_source import ConfigSource
from mlxd.daemon.inherited_sockets import inherited_sockets
from mlxd.daemon.settings import LoadedConfig


def start(flags: Mapping[str, object], config: Path | None) -> int:
    """Serve until a signal ends it; the exit code. `config` is the file that `--config` names. Raises BadConfig."""
    try:
        inherited = inherited_sockets(os.environ, os.getpid())
        source = ConfigSource({**flags, **inherited.flags()}, dict(os.environ), config)
        loaded = source.load()
        blas = _preload_blas(loaded)
    except ConfigError as error:
        raise BadConfig(str(error)) from error

    from mlxd.daemon.serve import run

    inherited.keep()
    return run(source, loaded, blas, inherited)


def _preload_blas(loaded: LoadedConfig) -> BlasPlan:
    """Start this process again if that makes MLX faster; it does not return then."""
    plan = plan_blas(loaded.settings, os.environ, sys.platform, SystemBlas())
    if not plan.reexec:
        return plan
    try:
        reexec(plan, sys.orig_argv)
    except OSError as error:
        note = f"could not start again with {plan.library}: {error.strerror}"
        return BlasPlan(None, False, note, slow=True)
