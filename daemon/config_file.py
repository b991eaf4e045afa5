"""Reads a configuration file: a regular one, and no more of it than a configuration has."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

from mlxd.daemon.config_errors import ConfigError, Problem

MAX_BYTES = 2**20
"""The largest configuration file."""

# without O_NONBLOCK opening a pipe waits for its other end
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def read_text(path: Path) -> str | None:
    """The text of a file, None when there is none. Never waits for a writer. Raises ConfigError."""
    try:
        with _open(path) as stream:
            content = stream.read(MAX_BYTES + 1)
            size = max(len(content), os.fstat(stream.fileno()).st_size)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(Problem(f"cannot be read: {error.strerror}", source=str(path))) from error
    if len(content) > MAX_BYTES:
        raise ConfigError(Problem(f"expected at most {MAX_BYTES} bytes, got {size}", source=str(path)))
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise ConfigError(Problem(f"expected UTF-8 text; {error.reason}", source=str(path))) from error


def _open(path: Path) -> BinaryIO:
    """Raises OSError, and ConfigError for a folder, a pipe, a socket or a device."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _irregular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path)
    return os.fdopen(descriptor, "rb")


def _irregular(path: Path) -> ConfigError:
    return ConfigError(Problem("expected a regular file", source=str(path)))
