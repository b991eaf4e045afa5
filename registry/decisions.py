"""The last decisions, numbered without gaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count

import structlog

from mlxd.registry.snapshot import Decision

log = structlog.stdlib.get_logger(__name__)


class DecisionLog:
    """A bounded record of loads, evictions, refusals and aborts; each is logged as it is made."""

    def __init__(self, wall_clock: Callable[[], float], limit: int = 1000) -> None:
        self._wall_clock = wall_clock
        self._numbers = count(1)
        self._decisions: deque[Decision] = deque(maxlen=limit)
        self.on_decision: Callable[[Decision], None] = lambda _: None

    def add(
        self,
        kind: str,
        reason: str,
        *,
        model: str | None = None,
        for_model: str | None = None,
        for_request: str | None = None,
        inputs: Mapping[str, object] | None = None,
    ) -> Decision:
        """Record and log one decision."""
        decision = Decision(
            next(self._numbers), self._wall_clock(), kind, model, reason, for_model, for_request, inputs or {}
        )
        self._decisions.append(decision)
        context = {"for_model": for_model, "for_request": for_request, **decision.inputs}
        named = {key: value for key, value in context.items() if value is not None}
        log.info("registry.decision", kind=kind, model=model, reason=reason, **named)
        self.on_decision(decision)
        return decision

    def last(self, limit: int) -> list[Decision]:
        """The newest `limit` decisions, oldest first."""
        return list(self._decisions)[-limit:] if limit > 0 else []
