"""Processes that belong to this one: how they find its modules, what is not theirs, how they end with it, and how that
is said.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

ORPHANED = 3
"""The exit code of one whose parent is gone."""

_PR_SET_PDEATHSIG = 1
# Of a terminal, of a service manager that stops a group, of a name that is looked for: it is the parent's to end or to
# reload, and its children with it.
_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def module_command(module: str, *arguments: object) -> list[str]:
    """What runs a module as a program that finds its modules where this process does."""
    paths = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, paths, "-m", module, *map(str, arguments)]


def belong_to(parent: int) -> None:
    """In the child: leave signals to the parent, and end with it, stopped or not.

    Only Linux ends a process so; elsewhere it has to notice the end of what it reads from its parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it is gone already
            os._exit(ORPHANED)
    for number in _FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)


def signal_of(code: int) -> str | None:
    """The name of the signal that ended a process with this exit code; None if it ended by itself."""
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ending(code: int) -> str:
    """How a process ended, as a part of a sentence."""
    name = signal_of(code)
    return f"ended with exit code {code}" if name is None else f"was killed by {name}"
