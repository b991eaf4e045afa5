"""What a process still writes at its end, to streams that may be full or closed."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def say(text: str, stream: TextIO) -> None:
    """Write a line and push it out; a reader that is gone or a full disk is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        stream.write(f"{text}\n")
        stream.flush()


def flush_streams() -> None:
    """Push out what is buffered. What cannot be written is dropped, or the interpreter would fail on it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _drop(stream)


def _drop(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
