"""Installs, starts, stops and removes the service, whichever manager runs it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator

from mlxd.daemon.service.failures import NotInstalled, StartFailed
from mlxd.daemon.service.files import Change, put_file, read_file
from mlxd.daemon.service.plan import ServicePlan
from mlxd.daemon.service.state import ServiceManager, ServiceState

START_SECONDS = 60.0
"""What the start of a daemon may take where its manager does not wait for it."""

POLL_SECONDS = 0.25

Report = Callable[[str], None]
"""Takes one line about what was done."""


def install(manager: ServiceManager, plan: ServicePlan, report: Report) -> Change:
    """Have the file, and the manager know it. Raises ServiceFailed and OSError."""
    content = manager.render(plan)
    manager.check()
    before = read_file(manager.file)
    change = put_file(manager.file, content)
    report(f"{change} {manager.file}")
    if before is not None:
        for line in _differences(before, content):
            report(f"  {line}")
    manager.adopt()
    return change


def uninstall(manager: ServiceManager, report: Report) -> None:
    """Stop the daemon and take the file away; nothing else is touched. Raises ServiceFailed and OSError."""
    if read_file(manager.file) is None and not manager.file.is_symlink():
        report(f"not installed: there is no {manager.file}")
        return
    state = manager.state()
    if state.trouble is None:
        manager.forget()
        if state.running:
            report("stopped")
    manager.file.unlink()
    report(f"removed {manager.file}")
    if state.trouble is None:
        manager.removed()


def start(
    manager: ServiceManager, answering: Callable[[], int | None], pause: Callable[[float], None], report: Report
) -> ServiceState:
    """Start the daemon unless it runs, and wait until it serves; `answering` is the process that answers calls.

    Raises NotInstalled, StartFailed and ServiceFailed.
    """
    _check_installed(manager)
    manager.check()
    state = manager.state()
    if state.running:
        report(f"it runs already, as process {state.pid}")
        return state
    manager.start()
    return _served(manager, answering, pause, report)


def stop(manager: ServiceManager, report: Report) -> None:
    """Stop the daemon and wait for its end. Raises NotInstalled and ServiceFailed."""
    _check_installed(manager)
    manager.check()
    running = manager.state().running
    manager.stop()
    report("stopped" if running else "it did not run")


def _served(
    manager: ServiceManager, answering: Callable[[], int | None], pause: Callable[[float], None], report: Report
) -> ServiceState:
    waited = 0.0
    while True:
        state = manager.state()
        if not state.running and (manager.starts_ready or state.last_exit is not None):
            ended = f" with {state.last_exit}" if state.last_exit is not None else ""
            raise StartFailed(
                f"the daemon ended{ended} while it started; `{manager.log_hint}` has why", state.last_exit
            )
        if state.running and (manager.starts_ready or answering() == state.pid):
            report(f"started, as process {state.pid}")
            return state
        if waited >= START_SECONDS:
            report(f"started, but it does not answer yet; `{manager.log_hint}` shows why")
            return state
        pause(POLL_SECONDS)
        waited += POLL_SECONDS


def _check_installed(manager: ServiceManager) -> None:
    if not manager.file.exists():
        raise NotInstalled(f"there is no {manager.file}; run `mlxd service install` first")


def _differences(before: bytes, after: bytes) -> Iterator[str]:
    """The lines that went, with a minus, and those that came, with a plus."""
    old, new = (text.decode(errors="replace").splitlines() for text in (before, after))
    changes = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    return (line for line in changes if not line.startswith("@@"))
