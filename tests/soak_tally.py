"""What came of each act of a soak, and what the contract allows to come of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from soak_daemon import PATIENCE

# Errors that a busy daemon may answer to whoever wants a model, with their status.
BUSY = {
    "queue_full": 429,
    "model_wait_timeout": 503,
    "model_load_failed": 503,
    "memory_ceiling": 503,
    "model_unloaded": 503,
    "engine_crashed": 503,
    "model_too_large": 507,
    "prefill_memory_exceeded": 507,
}
# And those that a request may be asking for.
ASKED_FOR = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "unsupported_capability": 400,
    "model_not_found": 404,
    "request_not_found": 404,
    "load_not_running": 409,
    "shutting_down": 503,
}
# Why a load may fail here: its process was killed, or an operator stopped it.
LOAD_FAILURES = {"crashed", "cancelled"}
# So many faults end a run: the rest would be more of the same.
ENOUGH = 20


class Wrong(Exception):
    """An answer that the contract does not know."""


@dataclass
class Tally:
    """How often each kind of act came to what, and took how long at most; how often each form of request was served;
    every fault.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Something is wrong. Raises AssertionError once it is enough."""
        self.faults.append(f"{time.strftime('%H:%M:%S')} {text}")
        assert len(self.faults) < ENOUGH, "\n".join(self.faults)

    def note(self, kind: str, outcome: str, seconds: float = 0.0) -> None:
        self.counts[kind, outcome] += 1
        self.slowest[kind] = max(self.slowest.get(kind, 0.0), seconds)

    async def take(self, kind: str, act: Awaitable[str], within: float = PATIENCE, form: str = "") -> str:
        """Do something that gives its outcome; it has to end, and as the contract says. `form` tells it from others
        of its kind.
        """
        started = time.monotonic()
        try:
            async with asyncio.timeout(within):
                outcome = await act
        except TimeoutError:
            outcome = "no end"
            self.fault(f"{kind} {form}: no end within {within:.0f} s")
        except (Wrong, aiohttp.ClientError) as error:
            outcome = "wrong"
            self.fault(f"{kind} {form}: {error!r}")
        self.served[form] += outcome == "ok"
        self.note(kind, outcome, time.monotonic() - started)
        return outcome


def code_of(status: int | None, answer: Any, *allowed: str) -> str:
    """The code of an error, checked: one of a busy daemon, or one of those that are allowed besides. In a stream
    there is no `status`. Raises Wrong.
    """
    error = answer.get("error") if isinstance(answer, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    expected = {**BUSY, **{code: ASKED_FOR[code] for code in allowed}}
    if code not in expected or status not in (None, expected[code]) or not error["message"]:
        raise Wrong(f"{status} {answer}, allowed besides: {allowed}")
    if code == "model_load_failed" and not is_brought_about(error):
        raise Wrong(f"{status} {answer}")
    return str(code)


def is_brought_about(error: dict[str, Any]) -> bool:
    """Whether somebody made a load fail. Rank 0 waits for a rank that was stopped before its first word."""
    return error["details"]["reason"] in LOAD_FAILURES or "nothing was heard of rank 1" in error["message"]
