"""A small world to drive the planner in: it does what the effects say, on a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlxd.registry import events as ev
from mlxd.registry.planner import next_deadline, plan
from mlxd.registry.residency import MemoryReading, Policy, Purpose, Residency, Resident, Waiter
from mlxd.registry.states import State


def world(*models: Resident, limit: int = 100, policy: Policy | None = None) -> World:
    residency = Residency(
        policy or Policy(), MemoryReading(limit, "memory.ceiling", 0, 0), {model.name: model for model in models}
    )
    return World(residency)


@dataclass
class World:
    state: Residency
    now: float = 1000.0
    effects: list[ev.Effect] = field(default_factory=list)
    waiter_ids: int = 0

    def send(self, event: ev.Event) -> list[ev.Effect]:
        self.state, effects = plan(self.state, event, self.now)
        self.effects += effects
        return effects

    def want(
        self, model: str, purpose: Purpose = Purpose.LEASE, bound: float | None = 120.0, key: str | None = None
    ) -> int:
        self.waiter_ids += 1
        deadline = None if bound is None else self.now + bound
        request_id = f"r{self.waiter_ids}"
        self.send(ev.Wanted(Waiter(self.waiter_ids, model, self.now, purpose, deadline, request_id, key)))
        return self.waiter_ids

    def load(self, model: str) -> int:
        """As an operator loads it."""
        return self.want(model, Purpose.LOAD, bound=None)

    def memory(self, **reading: object) -> None:
        """What the next event finds measured: fields of MemoryReading."""
        memory = replace(self.state.memory, **reading)  # type: ignore[arg-type]
        self.state = replace(self.state, memory=memory)

    def reconfigure(self, *models: Resident, policy: Policy | None = None) -> list[ev.Effect]:
        return self.send(ev.Reconfigured(policy or self.state.policy, models))

    def loaded(self, model: str) -> list[ev.Effect]:
        return self.send(ev.LoadDone(model, self.generation(model)))

    def loads_in(self, model: str, seconds: float) -> None:
        """A request waits so long for a load, and keeps its lease."""
        self.want(model)
        self.now += seconds
        self.loaded(model)

    def leaves(self, model: str, **reading: object) -> list[ev.Effect]:
        """A loaded model's engine closes, with so much measured afterwards."""
        self.send(ev.UnloadWanted(model, force=True))
        self.memory(**reading)
        return self.unloaded(model)

    def unloaded(self, model: str, *, clean: bool = True, held: int = 0) -> list[ev.Effect]:
        return self.send(ev.UnloadDone(model, self.generation(model), clean=clean, held=held))

    def broke(
        self, model: str, reason: str = "bad_files", *, cancelled: bool = False, clean: bool = True
    ) -> list[ev.Effect]:
        """A load fails, or ends as it was asked to."""
        reason = "cancelled" if cancelled else reason
        return self.send(ev.LoadBroke(model, self.generation(model), reason, "x", cancelled, clean))

    def dies(self, model: str, *suspects: str, **facts: object) -> list[ev.Effect]:
        """A loaded model's engine dies while it is at work on these requests."""
        return self.send(ev.EngineDied(model, self.generation(model), "its process ended", facts, suspects))

    def dies_and_goes(self, model: str, *suspects: str, **facts: object) -> list[ev.Effect]:
        """The same, and what is left of it is closed."""
        return self.dies(model, *suspects, **facts) + self.unloaded(model)

    def released(self, model: str) -> list[ev.Effect]:
        return self.send(ev.Released(model, self.generation(model)))

    def make_ready(self, model: str, leases: int = 0) -> None:
        """Load a model as requests would, and keep so many leases on it."""
        for _ in range(max(1, leases)):
            self.want(model)
        if self.model(model).state is State.LOADING:
            self.loaded(model)
        assert self.model(model).state is State.READY
        if not leases:
            self.released(model)

    def load_again(self, model: str, leases: int = 0) -> None:
        """Load a model as requests would, as soon as it may be."""
        trouble = self.model(model).trouble
        if trouble is not None:
            self.pass_time(max(0.0, trouble.retry_at - self.now))
        self.make_ready(model, leases)

    def pass_time(self, seconds: float) -> list[ev.Effect]:
        self.now += seconds
        return self.send(ev.Tick())

    def tick(self) -> float | None:
        """Time passes until the planner wants to be told; None when it does not."""
        due = next_deadline(self.state, self.now)
        if due is not None:
            self.pass_time(due - self.now)
        return due

    def looks_again(self, **reading: object) -> float:
        """The planner is told when it wants to be, and finds this measured; the seconds until then."""
        due = next_deadline(self.state, self.now)
        assert due is not None, "nobody looks again"
        self.memory(**reading)
        waited = due - self.now
        self.pass_time(waited)
        return waited

    def let_time_pass(self, seconds: float) -> None:
        """Tell the planner at each moment that it wants to be told, and not at the end."""
        until = self.now + seconds
        while (due := next_deadline(self.state, self.now)) is not None and due <= until:
            self.pass_time(due - self.now)
        self.now = until

    def model(self, name: str) -> Resident:
        return self.state.models[name]

    def generation(self, name: str) -> int:
        return self.model(name).generation

    def states(self) -> dict[str, str]:
        return {name: str(model.state) for name, model in self.state.models.items()}

    def of(self, kind: type[ev.Effect]) -> list[ev.Effect]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def granted(self) -> set[int]:
        return {effect.waiter_id for effect in self.effects if isinstance(effect, ev.Grant)}

    def refused(self, waiter_id: int) -> Exception | None:
        refusals = [e for e in self.effects if isinstance(e, ev.Refuse) and e.waiter_id == waiter_id]
        assert len(refusals) <= 1, "a waiter is refused once"
        return refusals[0].error if refusals else None

    def decided(self, kind: str) -> list[ev.Decide]:
        return [effect for effect in self.effects if isinstance(effect, ev.Decide) and effect.kind == kind]
