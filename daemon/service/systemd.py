"""The service of one user under systemd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.plan import ServicePlan
from mlxd.daemon.service.state import LastExit, ServiceState, signal_name
from mlxd.daemon.service.systemd_unit import user_unit
from mlxd.daemon.service.tools import TOOL_SECONDS, Ran, Run

UNIT = "mlxd.service"
# systemd bounds both by the unit's own times; this is for a systemd that does not answer
_WAIT_SECONDS = 3600.0
_PROPERTIES = ("LoadState", "UnitFileState", "MainPID", "ExecMainCode", "ExecMainStatus")
_ENABLED = ("enabled", "enabled-runtime", "linked", "linked-runtime", "alias")


class Systemd:
    """Speaks to `systemctl --user`; `linger` is a file that is there if the user's services outlast the login."""

    name = "systemd"
    log_hint = "journalctl --user -u mlxd -f -o cat"
    starts_ready = True

    def __init__(self, run: Run, folder: Path, linger: Path) -> None:
        self.file = folder / "systemd" / "user" / UNIT
        self._run = run
        self._linger = linger

    def render(self, plan: ServicePlan) -> bytes:
        """The content of the unit. Raises ServiceFailed for a plan that it cannot hold."""
        return user_unit(plan).encode()

    def check(self) -> None:
        """Raise ServiceFailed unless this user has a systemd."""
        trouble = self._trouble()
        if trouble is not None:
            raise ServiceFailed(
                f"this user has no systemd to run services here ({trouble}). Log in as the user itself, not by su or "
                "sudo; or have root run `loginctl enable-linger USER`, and set XDG_RUNTIME_DIR=/run/user/UID. Without "
                "systemd, as in most containers, run `mlxd serve` under what supervises processes there"
            )

    def adopt(self) -> None:
        """Have systemd read the unit, and start it with the user's other services from now on."""
        self._do("daemon-reload")
        if self._show()["LoadState"] != "loaded":
            raise ServiceFailed(f"systemd does not take {self.file}: see `systemctl --user status {UNIT}`")
        self._do("enable", UNIT)

    def forget(self) -> None:
        """Stop it, and start it no more."""
        shown = self._show()
        if shown["LoadState"] == "loaded" or shown["MainPID"] != "0":
            self.stop()
        self._do("disable", UNIT)

    def start(self) -> None:
        """Start it; systemd waits until requests are served, or it ended. Which of them `state` tells."""
        self._do("reset-failed", UNIT, fails=True)
        answer = self._ask("start", UNIT, seconds=_WAIT_SECONDS)
        if answer.code and _last_exit(self._show()) is None:  # it never ran
            raise ServiceFailed(f"systemd does not start it: {answer.words}")

    def stop(self) -> None:
        """Stop it, and wait for its end."""
        self._do("stop", UNIT, seconds=_WAIT_SECONDS)

    def state(self) -> ServiceState:
        """What there is now."""
        installed = self.file.exists()
        if trouble := self._trouble():
            return ServiceState(installed, trouble=trouble)
        shown = self._show()
        pid = int(shown["MainPID"]) or None
        return ServiceState(
            installed,
            enabled=shown["UnitFileState"] in _ENABLED,
            running=pid is not None,
            pid=pid,
            last_exit=_last_exit(shown) if pid is None else None,
        )

    def removed(self) -> None:
        """Have systemd notice that the unit is gone."""
        self._do("daemon-reload")
        self._do("reset-failed", UNIT, fails=True)

    def notes(self) -> list[str]:
        """What whoever installs it should know."""
        if self._linger.exists():
            return []
        return [
            "it runs while you are logged in; `loginctl enable-linger` keeps it running after that, and from boot on"
        ]

    def _trouble(self) -> str | None:
        try:
            answer = self._ask("show", "--property=Version")
        except ServiceFailed as error:
            return str(error)
        return answer.words if answer.code else None

    def _show(self) -> Mapping[str, str]:
        answer = self._ask("show", UNIT, f"--property={','.join(_PROPERTIES)}")
        if answer.code:
            raise ServiceFailed(f"`systemctl --user show {UNIT}` failed: {answer.words}")
        shown = dict(line.split("=", 1) for line in answer.output.splitlines() if "=" in line)
        missing = [name for name in _PROPERTIES if name not in shown]
        if missing:
            raise ServiceFailed(f"`systemctl --user show {UNIT}` does not tell {', '.join(missing)}")
        return shown

    def _do(self, *words: str, seconds: float = TOOL_SECONDS, fails: bool = False) -> None:
        """Raise ServiceFailed if it fails, unless it may."""
        answer = self._ask(*words, seconds=seconds)
        if answer.code and not fails:
            raise ServiceFailed(f"`systemctl --user {' '.join(words)}` failed: {answer.words}")

    def _ask(self, *words: str, seconds: float = TOOL_SECONDS) -> Ran:
        command: Sequence[str] = ("systemctl", "--user", "--no-pager", *words)
        return self._run(command, seconds)


def _last_exit(shown: Mapping[str, str]) -> LastExit | None:
    """How the last run ended, None when there was none."""
    status = int(shown["ExecMainStatus"])
    match shown["ExecMainCode"]:
        case "1":  # CLD_EXITED
            return LastExit(code=status)
        case "2" | "3":  # CLD_KILLED, CLD_DUMPED
            return LastExit(signal=signal_name(status))
    return None
