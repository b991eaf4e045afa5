"""launchd as its tool shows it: jobs that are loaded from files, run, end and crash as a test says."""

from __future__ import annotations

import plistlib
from collections.abc import Sequence
from pathlib import Path

from mlxd.daemon.service.tools import Ran

_NOT_FOUND = Ran(113, "", 'Bad request.\nCould not find service "org.mlxd.daemon" in domain for user gui: 501\n')
_SHOWN = """{job} = {{
\tactive count = 1
\tpath = {path}
\ttype = LaunchAgent
\tstate = {state}

\tprogram = {program}
\targuments = {{
\t\t{program}
\t\tpid = 1
\t}}

\tdomain = gui/501 [100005]
\tminimum runtime = 30
\texit timeout = 90
\truns = 1
{lines}
\tspawn type = interactive (4)
\tproperties = keepalive | runatload | inferred program
}}
"""


class FakeLaunchd:
    """Answers as `launchctl` does. What becomes of the next start: it runs, or `ends` with these lines.

    `lingers` is how often a job is still shown after it was booted out; `pid` is None while nothing runs.
    `refused` has the answers to verbs that are refused.
    """

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.loaded: Path | None = None
        self.job: dict[str, object] = {}
        self.pid: int | None = None
        self.ends: str | None = None
        self.has_session = True
        self.refused: dict[str, Ran] = {}
        self.lingers = 0
        self._leaving = False

    def __call__(self, command: Sequence[str], _seconds: float) -> Ran:
        tool, verb, *words = command
        assert tool == "launchctl"
        if verb == "print":
            return self._print(words[0])
        self.commands.append(" ".join([verb, *words]))
        if verb in self.refused:
            return self.refused[verb]
        return {"bootstrap": self._bootstrap, "bootout": self._bootout}.get(verb, self._fine)(*words)

    def end(self, lines: str) -> None:
        """The process is gone."""
        self.pid, self.ends = None, lines

    def _fine(self, *_words: str) -> Ran:
        return Ran(0, "", "")

    def _print(self, target: str) -> Ran:
        if not self.has_session:
            return Ran(125, "", "Domain does not support specified action\n")
        if target == "gui/501":
            return Ran(0, "gui/501 = {\n\ttype = login\n}\n", "")
        if self._leaving:
            self.lingers -= 1
            if self.lingers < 0:
                self._leaving, self.loaded, self.pid = False, None, None
        if self.loaded is None:
            return _NOT_FOUND
        running = self.pid is not None
        lines = f"\tpid = {self.pid}\n\tlast exit code = (never exited)" if running else f"\t{self.ends}"
        state, program = "running" if running else "not running", self.job["ProgramArguments"][0]
        return Ran(0, _SHOWN.format(job=target, path=self.loaded, state=state, program=program, lines=lines), "")

    def _bootstrap(self, domain: str, path: str) -> Ran:
        if self.loaded is not None:
            return Ran(5, "", "Bootstrap failed: 5: Input/output error\n")
        assert domain == "gui/501"
        self.loaded, self.job = Path(path), plistlib.loads(Path(path).read_bytes())
        self.pid = None if self.ends else 4242
        return Ran(0, "", "")

    def _bootout(self, _target: str) -> Ran:
        self._leaving = True
        return Ran(36, "", "Boot-out failed: 36: Operation now in progress\n") if self.lingers else Ran(0, "", "")
