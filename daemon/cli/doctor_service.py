"""The installed service as `mlxd doctor` sees it."""

from __future__ import annotations

from mlxd.daemon.cli.doctor_checks import Check, Group
from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.state import ServiceManager, ServiceState

GROUP = Group("service")


def service_checks(manager: ServiceManager | None) -> list[Check]:
    """Whether the service is installed, and if so whether it runs; `manager` is None where there is none."""
    if manager is None or not manager.file.exists():
        return [GROUP.ok("service", "not installed; `mlxd service install` does that", installed=False)]
    try:
        state = manager.state()
    except ServiceFailed as error:
        return [GROUP.warning("service", f"it cannot be told how it is: {error}", f"look at {manager.file}")]
    return [_state(manager, state)]


def _state(manager: ServiceManager, state: ServiceState) -> Check:
    details = {"installed": True, "running": state.running, "pid": state.pid}
    if state.trouble is not None:
        found = f"installed, but {manager.name} cannot be asked about it: {state.trouble}"
        return GROUP.warning("service", found, "log in as this user itself, not by su or sudo", **details)
    if state.running:
        return GROUP.ok("service", f"installed, and running as process {state.pid}", **details)
    ended = f"; it last ended with {state.last_exit}" if state.last_exit is not None else ""
    advice = f"`mlxd service start`; `{manager.log_hint}` has why it ended"
    return GROUP.warning("service", f"installed, but not running{ended}", advice, **details)
