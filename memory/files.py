"""Bounded reading of files nobody vouches for: never a device, never a pipe, never more than was asked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

SHOWN_NAME = 80


class BadFile(ValueError):
    """A file that cannot be used; the message is a sentence that begins with its name."""


class MissingFile(BadFile):
    """There is no such file, or a link that leads nowhere."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, through links, without ever waiting for a writer. Raises BadFile."""
    try:
        # a pipe opened without O_NONBLOCK waits for its other end
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise MissingFile(f"{shown(path.name)} is missing") from error
    except (OSError, ValueError) as error:
        raise BadFile(f"{shown(path.name)} cannot be read: {reason(error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadFile(f"{shown(path.name)} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bounded(path: Path, limit: int) -> bytes:
    """The whole content of a regular file of at most `limit` bytes. Raises BadFile."""
    with open_regular(path) as stream:
        try:
            content = stream.read(limit + 1)
        except OSError as error:
            raise BadFile(f"{shown(path.name)} cannot be read: {reason(error)}") from error
    if len(content) > limit:
        raise BadFile(f"{shown(path.name)} is larger than {limit} bytes")
    return content


def reason(error: Exception) -> str:
    """The cause of a failed call in words, without the path."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def shown(name: str) -> str:
    """A foreign name as it may appear in a message: short, printable, encodable."""
    short = name if len(name) <= SHOWN_NAME else f"{name[:SHOWN_NAME]}…"
    return short if short.isprintable() else ascii(short)
