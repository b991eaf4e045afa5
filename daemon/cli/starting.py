"""Starts the daemon in the foreground: its configuration, its BLAS, and then itself."""

# The daemon itself is imported last: a bad configuration is told without it.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from mlxd.daemon.blas import SystemBlas, plan_blas
from mlxd.daemon.cli.failures import BadConfig
from mlxd.daemon.config import ConfigError
from mlxd.daemon.config_source import ConfigSource
from mlxd.daemon.inherited_sockets import inherited_sockets


def configure(flags: Mapping[str, object], config: Path | None) -> Callable[[], int]:
    """Read the configuration and import the daemon; what it gives serves until a signal, and then has the exit code.

    `config` is the file that `--config` names. Raises BadConfig.
    """
    try:
        inherited = inherited_sockets(os.environ, os.getpid())
        source = ConfigSource({**flags, **inherited.flags()}, dict(os.environ), config)
        loaded = source.load()
        blas = plan_blas(loaded.settings, os.environ, sys.platform, SystemBlas())
    except ConfigError as error:
        raise BadConfig(str(error)) from error
    blas.announce(os.environ)

    from mlxd.daemon.serve import run

    return partial(run, source, loaded, blas, inherited)
