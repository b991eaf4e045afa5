"""Reads a configuration file: a regular one, and no more of it than a configuration has."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

import tomli

from mlxd.daemon.config_errors import ConfigError, KeyPath, Problem
from mlxd.daemon.config_lines import MAX_DEPTH, key_lines

MAX_BYTES = 2**20
"""The largest configuration file."""

# without O_NONBLOCK opening a pipe waits for its other end
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def read_text(path: Path, *, private: bool = False) -> str | None:
    """The text of a file, None when there is none. Never waits for a writer.

    Raises ConfigError, for a `private` file also where others than its owner may read or change it.
    """
    try:
        with _open(path) as stream:
            if private:
                _check_private(path, os.fstat(stream.fileno()))
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


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(Problem("expected a file of your own or of root", source=str(path)))
    if status.st_mode & 0o077:
        message = f"others may read or change it (mode {stat.S_IMODE(status.st_mode):04o}); chmod go-rwx it"
        raise ConfigError(Problem(message, source=str(path)))


def _irregular(path: Path) -> ConfigError:
    return ConfigError(Problem("expected a regular file", source=str(path)))


def parse(path: Path, text: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The values in a TOML text, and the line of every key. Raises ConfigError."""
    try:
        return tomli.loads(text), key_lines(text)
    except tomli.TOMLDecodeError as error:
        raise ConfigError(Problem(f"not TOML: {error.msg}", source=str(path), line=error.lineno)) from error
    except RecursionError as error:
        raise ConfigError(
            Problem(f"expected at most {MAX_DEPTH} levels of tables and arrays", source=str(path))
        ) from error
    except ValueError as error:
        raise ConfigError(Problem(f"expected shorter numbers: {error}", source=str(path))) from error
