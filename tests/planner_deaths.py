"""What is promised of models whose engines die, kept by counting deaths from outside. Seconds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mlxd.registry import events as ev
from mlxd.registry.deaths import QUARANTINE, STABLE
from mlxd.registry.errors import ModelLoadFailed, RegistryError
from mlxd.registry.residency import Policy, Purpose, Residency, Resident, Waiter
from mlxd.registry.states import State

if TYPE_CHECKING:
    from planner_outside import Outside


@dataclass
class Mortality:
    """Deaths in a row by model, how long it `served` since the last one and since when it does, when it may be loaded
    again, and which models are to come `back` by themselves.
    """

    rows: dict[str, int] = field(default_factory=dict)
    served: dict[str, float] = field(default_factory=dict)
    serves_since: dict[str, float] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)
    back: set[str] = field(default_factory=set)

    def copy(self) -> Mortality:
        return replace(
            self,
            rows=dict(self.rows),
            served=dict(self.served),
            serves_since=dict(self.serves_since),
            not_before=dict(self.not_before),
            back=set(self.back),
        )

    def judge(self, outside: Outside, before: Residency, event: ev.Event, effects: list[ev.Effect]) -> None:
        """Take an event in, and check what was planned for it before that is done."""
        after, now = outside.state, outside.now
        if before.closing:
            return
        refused = {effect.waiter_id: effect.error for effect in effects if isinstance(effect, ev.Refuse)}
        match event:
            case ev.EngineDied() | ev.LoadBroke() | ev.LoadDone():
                self._engine(before, event, after, refused.values(), now)
            case _:
                self._wish(before, event)
        for effect in effects:
            self._follow(effect, [one for one in outside.waiting.values() if one.id not in refused], now)
        for model in after.models.values():
            counted = model.deaths.count if model.deaths is not None else 0
            assert counted == self.rows.get(model.name, 0), f"{counted} deaths of {model.name} are counted"

    def _engine(
        self,
        before: Residency,
        event: ev.EngineDied | ev.LoadBroke | ev.LoadDone,
        after: Residency,
        refused: Collection[RegistryError],
        now: float,
    ) -> None:
        states = (State.READY, State.DRAINING) if isinstance(event, ev.EngineDied) else (State.LOADING,)
        model = before.models.get(event.model)
        if model is None or model.generation != event.generation or model.state not in states:
            return
        match event:
            case ev.EngineDied():
                self._serve(model.name, now)
                self._at_work(model, before.policy, after, refused, now)
            case ev.LoadBroke(reason="crashed") if not (event.cancelled or model.cancelling or model.outdated):
                self._dies(model, before.policy, now, free=0)
            case ev.LoadDone():
                self.serves_since[model.name] = now

    def _wish(self, before: Residency, event: ev.Event) -> None:
        match event:
            case ev.Wanted(waiter) if waiter.purpose is Purpose.LOAD:
                self.not_before.pop(waiter.model, None)
            case ev.UnloadWanted(name) | ev.PolicyChanged(name, pinned=False):
                self.back.discard(name)
            case ev.Reconfigured(_, models):
                self._reconfigured(before, models)
            case ev.Closing():
                self.back.clear()

    def _at_work(
        self, model: Resident, policy: Policy, after: Residency, refused: Collection[RegistryError], now: float
    ) -> None:
        if model.outdated or model.removed:
            return
        self._dies(model, policy, now, free=1)
        if model.state is not State.READY:
            self.back.discard(model.name)
        crashed = [e for e in refused if isinstance(e, ModelLoadFailed) and e.model == model.name]
        if self.rows[model.name] == 1:
            assert not crashed, f"somebody hears of the first death of {model.name} who was not there"
        else:
            assert all(waiter.model != model.name for waiter in after.waiters), f"somebody waits for {model.name}"
        assert {error.failure.reason for error in crashed} <= {"crashed"}

    def _dies(self, model: Resident, policy: Policy, now: float, *, free: int) -> None:
        name = model.name
        self.rows[name] = times = self.rows.get(name, 0) + 1
        self.served[name] = 0.0
        backoff = min(policy.max_backoff, policy.retry_backoff * 2 ** (times - free - 1)) if times > free else 0.0
        quarantined = times >= QUARANTINE
        self.not_before[name] = now + (policy.max_backoff if quarantined else backoff)
        if model.pinned and not quarantined and not model.outdated:
            self.back.add(name)

    def _serve(self, name: str, now: float) -> None:
        """An engine leaves memory: that time without a death counts."""
        self.served[name] = self.served.get(name, 0.0) + now - self.serves_since.pop(name, now)
        if self.served[name] >= STABLE:
            self.rows.pop(name, None)

    def _reconfigured(self, before: Residency, models: Collection[Resident]) -> None:
        configured = {model.name: model for model in models}
        for name, known in before.models.items():
            model = configured.get(name)
            if model is None or not model.pinned:
                self.back.discard(name)
            if model is not None and model.load_key != known.load_key:
                self._forget(name)

    def _forget(self, name: str) -> None:
        self.rows.pop(name, None)
        self.not_before.pop(name, None)

    def _follow(self, effect: ev.Effect, waiting: Collection[Waiter], now: float) -> None:
        match effect:
            case ev.StartLoad(name):
                assert now >= self.not_before.get(name, now), f"{name} is loaded before its back-off is over"
                wishes = {waiter.purpose for waiter in waiting if waiter.model == name}
                assert wishes or name in self.back, f"{name} is loaded and nobody wants it"
                self.back.discard(name)
                if Purpose.LOAD in wishes:
                    self._forget(name)
            case ev.StartUnload(name):
                self._serve(name, now)
            case ev.Forget(name):
                self._forget(name)
                self.back.discard(name)
            case ev.Decide(kind="refuse", model=str(name), reason="never_fits"):
                self.back.discard(name)

    def check_ending(self, state: Residency) -> None:
        """All that was to come back by itself has done so."""
        assert not self.back, f"{self.back} did not come back"
        assert not state.waiters, "the planner waits for ever"
