"""Runs the tools that speak to a service manager."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mlxd.daemon.service.failures import ServiceFailed

TOOL_SECONDS = 30.0
"""What a tool may take that waits for nothing."""


class Ran(NamedTuple):
    """How a tool ended, and what it said."""

    code: int
    output: str
    errors: str

    @property
    def words(self) -> str:
        """What it said of its failure, on one line."""
        return " ".join((self.errors or self.output).split()) or f"exit code {self.code}"


Run = Callable[[Sequence[str], float], Ran]
"""Runs a command line for at most so many seconds. Raises ServiceFailed."""


def run_tool(command: Sequence[str], seconds: float) -> Ran:
    """Run a tool that is found on PATH. Raises ServiceFailed when it is missing or does not end in time."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise ServiceFailed(f"there is no {command[0]} here") from error
    except subprocess.TimeoutExpired as error:
        raise ServiceFailed(f"`{' '.join(command)}` did not end within {seconds:g} s") from error
    return Ran(done.returncode, done.stdout, done.stderr)
