"""The service of one user under launchd."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.launchd_plist import LABEL, agent, log_folder
from mlxd.daemon.service.plan import ServicePlan
from mlxd.daemon.service.state import LastExit, ServiceState, signal_name
from mlxd.daemon.service.tools import TOOL_SECONDS, Ran, Run

POLL_SECONDS = 0.2
# `bootout` may return before the job is gone; this is for a launchd that does not get rid of it
_GONE_SECONDS = 3600.0
_IN_PROGRESS = 36
# the first level of what `launchctl print` shows of a job
_LINE = re.compile(r"^\t(\w[\w ]*?) = (.*)$", re.MULTILINE)
_NUMBER = re.compile(r"\d+")


class Launchd:
    """Speaks to `launchctl` about an agent in the user's graphical session; `pause` waits so many seconds."""

    name = "launchd"
    starts_ready = False

    def __init__(self, run: Run, home: Path, uid: int, pause: Callable[[float], None]) -> None:
        self.file = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self.log_hint = f"tail -F {log_folder(home)}/*.log"
        self._run = run
        self._home = home
        self._domain = f"gui/{uid}"
        self._job = f"{self._domain}/{LABEL}"
        self._pause = pause

    def render(self, plan: ServicePlan) -> bytes:
        """The content of the property list. Raises ServiceFailed for a plan that it cannot hold."""
        if plan.memory_max is not None:
            raise ServiceFailed("launchd has no memory limit; set memory.ceiling in the configuration")
        return agent(plan, self._home)

    def check(self) -> None:
        """Raise ServiceFailed unless this user has a session that agents run in."""
        trouble = self._trouble()
        if trouble is not None:
            raise ServiceFailed(
                f"this user has no session here that an agent could run in ({trouble}). Log in on the screen as this "
                "user, once; or install etc/system/org.mlxd.daemon.plist, which needs no login"
            )

    def adopt(self) -> None:
        """Have launchd start it with each login from now on."""
        log_folder(self._home).mkdir(parents=True, exist_ok=True)
        self._do("enable", self._job)

    def forget(self) -> None:
        """Stop it; without its file it is not started again."""
        self.stop()

    def start(self) -> None:
        """Start it by the file as it is now."""
        if self._shown() is not None:
            self.stop()  # it is known by an earlier file, and not running
        self._do("bootstrap", self._domain, str(self.file))
        self._do("kickstart", self._job)

    def stop(self) -> None:
        """Stop it, and wait for its end."""
        if self._shown() is None:
            return
        answer = self._ask("bootout", self._job, seconds=_GONE_SECONDS)
        if answer.code not in (0, _IN_PROGRESS):
            raise ServiceFailed(f"`launchctl bootout {self._job}` failed: {answer.words}")
        waited = 0.0
        while self._shown() is not None:
            if waited >= _GONE_SECONDS:
                raise ServiceFailed(f"{self._job} does not end; see `launchctl print {self._job}`")
            self._pause(POLL_SECONDS)
            waited += POLL_SECONDS

    def state(self) -> ServiceState:
        """What there is now."""
        installed = self.file.exists()
        if trouble := self._trouble():
            return ServiceState(installed, trouble=trouble)
        shown = self._shown()
        if shown is None:
            return ServiceState(installed, enabled=installed, running=False)
        pid = next(iter(_numbers(shown, "pid")), None)
        last_exit = _last_exit(shown) if pid is None else None
        return ServiceState(installed, enabled=installed, running=pid is not None, pid=pid, last_exit=last_exit)

    def removed(self) -> None:
        """Nothing: launchd looks at the folder when somebody logs in."""

    def notes(self) -> list[str]:
        """What whoever installs it should know."""
        return ["it runs while you are logged in on the screen"]

    def _trouble(self) -> str | None:
        try:
            answer = self._ask("print", self._domain)
        except ServiceFailed as error:
            return str(error)
        return answer.words if answer.code else None

    def _shown(self) -> Mapping[str, str] | None:
        """What launchd says of the job, None when it does not know it."""
        answer = self._ask("print", self._job)
        return dict(_LINE.findall(answer.output)) if answer.code == 0 else None

    def _do(self, *words: str) -> None:
        answer = self._ask(*words)
        if answer.code:
            raise ServiceFailed(f"`launchctl {' '.join(words)}` failed: {answer.words}")

    def _ask(self, *words: str, seconds: float = TOOL_SECONDS) -> Ran:
        return self._run(("launchctl", *words), seconds)


def _last_exit(shown: Mapping[str, str]) -> LastExit | None:
    """How the last run ended, None when there was none or launchd does not say."""
    signals = _numbers(shown, "last terminating signal")  # as in "User defined signal 1: 30"
    if signals:
        return LastExit(signal=signal_name(signals[-1]))
    codes = _numbers(shown, "last exit code")  # as in "78: EX_CONFIG", or "(never exited)"
    return LastExit(code=codes[0]) if codes else None


def _numbers(shown: Mapping[str, str], name: str) -> list[int]:
    """The numbers in a value: launchd puts words before or behind."""
    return [int(number) for number in _NUMBER.findall(shown.get(name, ""))]
