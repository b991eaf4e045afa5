"""What a service manager is asked for, and what it tells of the daemon."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from mlxd.daemon.service.plan import ServicePlan


class LastExit(Struct, frozen=True):
    """How the last run ended: by itself with a code, or by a signal."""

    code: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        """For people."""
        return f"code {self.code}" if self.signal is None else self.signal


def signal_name(number: int) -> str:
    """The name of a signal, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ServiceState(Struct, frozen=True):
    """What is known of the service; None where the manager does not tell. `trouble` says why it does not."""

    installed: bool
    enabled: bool | None = None
    running: bool | None = None
    pid: int | None = None
    last_exit: LastExit | None = None
    trouble: str | None = None


class ServiceManager(Protocol):
    """launchd or systemd, for the one service of this user. All calls block and raise ServiceFailed."""

    name: str
    file: Path
    log_hint: str
    """A command that shows the log."""
    starts_ready: bool
    """Whether `start` waits until requests are served."""

    def render(self, plan: ServicePlan) -> bytes:
        """The content of the file. Raises ServiceFailed for a plan that it cannot hold."""

    def check(self) -> None:
        """Raise ServiceFailed unless the manager can be reached from here."""

    def adopt(self) -> None:
        """Have the manager read the file, and start the daemon at each login from now on."""

    def forget(self) -> None:
        """Stop it, and start it no more; the file may go then."""

    def start(self) -> None:
        """Start it by the file as it is now."""

    def stop(self) -> None:
        """Stop it, and wait for its end. It starts again with the next login."""

    def state(self) -> ServiceState:
        """What there is now. Raises nothing where the manager cannot be reached: `trouble` says so then."""

    def removed(self) -> None:
        """The file is gone."""

    def notes(self) -> list[str]:
        """What whoever installs it should know."""
