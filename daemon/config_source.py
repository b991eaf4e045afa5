"""Where a daemon's configuration comes from, so that it can be read again from the same place."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from mlxd.daemon.blas import SystemBlas, plan_blas
from mlxd.daemon.config import check_bind, load_config, located
from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.keys_file import read_keys
from mlxd.daemon.settings import LoadedConfig, Settings
from mlxd.daemon.unavailable import refuse_unavailable


class ConfigSource:
    """Flags, the environment, and the file that was read first; without any, the one that is there now.

    `path` is the file that `--config` names. May be used from any thread.
    """

    def __init__(self, flags: Mapping[str, object], environ: Mapping[str, str], path: Path | None) -> None:
        self._flags = flags
        self._environ = environ
        self._path = path
        self._found: Path | None = None

    def load(self) -> LoadedConfig:
        """Read it. Raises ConfigError with all problems."""
        if self._found is not None and not os.path.lexists(self._found):
            message = "expected the file that the daemon was started with, but there is none"
            raise ConfigError(Problem(message, source=str(self._found)))
        try:
            loaded = load_config(self._flags, self._environ, self._found or self._path)
        except OSError as error:  # the current folder is gone, to which flags may be relative
            raise ConfigError(Problem(f"the configuration cannot be read: {error}")) from error
        self._found = self._found or loaded.path
        return loaded

    def load_checked(self) -> LoadedConfig:
        """Read it, and refuse what a start would refuse. Raises ConfigError with all problems."""
        loaded = self.load()
        try:
            check_start(loaded.settings, self._environ)
        except ConfigError as error:
            raise located(error, loaded) from error
        return loaded


def check_settings(settings: Settings) -> None:
    """Refuse what this version cannot follow, whatever libraries, folders and memory there are. Raises ConfigError."""
    refuse_unavailable(settings)
    check_bind(settings, has_keys=bool(read_keys(settings.auth.keys_file)))


def check_start(settings: Settings, environ: Mapping[str, str]) -> None:
    """Refuse what a start would refuse, the BLAS that is named but not there too. Raises ConfigError."""
    check_settings(settings)
    plan_blas(settings, environ, sys.platform, SystemBlas())
