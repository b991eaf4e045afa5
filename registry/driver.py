"""Drives the planner: one event in, one plan, its effects done, until no event is left."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

import structlog

from mlxd.registry import events as ev
from mlxd.registry.planner import next_deadline, plan
from mlxd.registry.residency import MemoryReading, Residency
from mlxd.registry.states import State

log = structlog.stdlib.get_logger(__name__)

# Seconds until what a plan that failed was about is planned for again.
RETRY = 1.0


class MemorySource(Protocol):
    """What the planner is told of memory; `fresh` asks for a new measurement."""

    def __call__(self, *, fresh: bool) -> MemoryReading: ...


class Driver:
    """The only holder of the planner's state. `act` does one effect; it may post events, which then follow.

    Nothing is awaited between an event and its effects, so no reader ever sees a half-done plan.
    """

    def __init__(
        self,
        state: Residency,
        memory: MemorySource,
        act: Callable[[ev.Effect], None],
        clock: Callable[[], float],
        on_models: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        self.state = state
        self.unleased = asyncio.Event()
        self._memory = memory
        self._act = act
        self._clock = clock
        self._on_models = on_models
        self._events: deque[ev.Event] = deque()
        self._planning = False
        self._planned = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._broke = False

    def post(self, event: ev.Event) -> None:
        """Plan for an event and do what follows; an event posted meanwhile is next."""
        self._events.append(event)
        if self._planning:
            return
        self._planning = True
        before = self.state
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._planning = False
            self._arm()
        if changed := _changed(before, self.state):
            self._on_models(changed)

    @property
    def overdue(self) -> float:
        """Seconds since which it should have planned again; 0 when nothing is due."""
        return 0.0 if self._due is None else max(0.0, self._clock() - self._due)

    def stop(self) -> None:
        """No more ticks."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _step(self, event: ev.Event) -> None:
        state = replace(self.state, memory=self._read_memory(event))
        self._planned = self._clock()
        self._broke = True
        self.state, effects = plan(state, event, self._planned)
        for effect in effects:
            self._act(effect)
        self._broke = False

    def _read_memory(self, event: ev.Event) -> MemoryReading:
        try:
            return self._memory(fresh=self._moves_memory(event))
        # What happened must not be lost because a probe or an engine could not be read: the last reading has to do.
        except Exception:
            log.exception("registry.memory_unread")
            return self.state.memory

    def _moves_memory(self, event: ev.Event) -> bool:
        if isinstance(event, ev.Wanted):
            model = self.state.models.get(event.waiter.model)
            return model is not None and model.state is not State.READY
        if isinstance(event, ev.Tick):
            waited_for = self.state.waiters or self.state.rooms
            return bool(waited_for) or any(model.revives for model in self.state.models.values())
        return not isinstance(event, (ev.Released, ev.Left, ev.KeptAlive))

    def _arm(self) -> None:
        if any(model.leases for model in self.state.models.values()):
            self.unleased.clear()
        else:
            self.unleased.set()
        self.stop()
        # of the plan's own moment: what has become due since then is still to be planned for
        due = next_deadline(self.state, self._planned)
        if self._broke:
            # a bug; what was due then is not forgotten for it, and not tried without a pause
            due = self._clock() + RETRY
        self._due = due
        if due is not None:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self.post, ev.Tick())


def _changed(before: Residency, after: Residency) -> set[str]:
    """Names of the models that readers see differently now: what became of them, or who waits for them."""
    old, new = before.models, after.models
    names = {name for name in new if old.get(name) is not new[name]} | (old.keys() - new.keys())
    if before.waiters is not after.waiters:
        was, now = ({waiter.id: waiter.model for waiter in state.waiters} for state in (before, after))
        names |= {was.get(number) or now[number] for number in was.keys() ^ now.keys()}
    return names
