"""What `mlxd doctor` says: one check each, and the bound that no check may pass."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import Struct, field

_Found = TypeVar("_Found")


class Level(enum.StrEnum):
    """How bad it is: a warning serves worse than it could, a problem does not serve at all."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(Struct, frozen=True):
    """One thing that was looked at: what was found and, unless all is well, what to do. `details` has the numbers."""

    group: str
    name: str
    level: Level
    found: str
    advice: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Makes the checks of one group."""

    name: str

    def ok(self, name: str, found: str, **details: Any) -> Check:
        """All is well."""
        return Check(self.name, name, Level.OK, found, None, details)

    def warning(self, name: str, found: str, advice: str, **details: Any) -> Check:
        """It works, but not as well as it could."""
        return Check(self.name, name, Level.WARNING, found, advice, details)

    def problem(self, name: str, found: str, advice: str, **details: Any) -> Check:
        """Something cannot be served."""
        return Check(self.name, name, Level.PROBLEM, found, advice, details)


def begin(call: Callable[[], _Found]) -> Future[_Found]:
    """Run `call` on a thread of its own; `result` waits for what it gives or raises, for as long as one likes.

    A thread that hangs, as on a lost network mount, does not hold the process up at its end.
    """
    outcome: Future[_Found] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome
