"""What goes wrong with a service."""

from __future__ import annotations

from mlxd.daemon.service.state import LastExit


class ServiceFailed(Exception):
    """The service manager is not there, or could not do it; the message says what to do."""


class NotInstalled(ServiceFailed):
    """There is no service file."""


class StartFailed(ServiceFailed):
    """The daemon ended while it started; how, where its manager tells."""

    def __init__(self, message: str, last_exit: LastExit | None) -> None:
        super().__init__(message)
        self.last_exit = last_exit
