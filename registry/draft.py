"""The next residency while the planner works it out: small moves, and the effects they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mlxd.registry import events as ev
from mlxd.registry.errors import Failure, ModelLoadFailed, RegistryError
from mlxd.registry.pace import averaged
from mlxd.registry.residency import Purpose, Residency, Resident, RoomWanted, Waiter
from mlxd.registry.states import Move, State


class Draft:
    """A private copy of a Residency that is changed step by step; `state` is always whole."""

    def __init__(self, state: Residency, now: float) -> None:
        self._models = dict(state.models)
        self.state = replace(state, models=self._models)
        self.now = now
        self.effects: list[ev.Effect] = []

    # -- models --------------------------------------------------------------------------------------------

    def find(self, name: str) -> Resident | None:
        return self._models.get(name)

    def model(self, name: str) -> Resident:
        return self._models[name]

    def models(self, *states: State) -> list[Resident]:
        """The models in one of these states now."""
        return [model for model in self._models.values() if model.state in states]

    def put(self, model: Resident) -> None:
        self._models[model.name] = model

    def move(self, name: str, what: Move, **changes: object) -> None:
        """Move a model by the table. Raises IllegalMove."""
        self.put(self._models[name].moved(what, **changes))

    def current(self, name: str, generation: int, *states: State) -> Resident | None:
        """The model that an event speaks of, None when it speaks of the past."""
        model = self._models.get(name)
        if model is None or model.generation != generation or model.state not in states:
            return None
        return model

    def forget(self, name: str) -> None:
        """A removed model is out of memory."""
        del self._models[name]
        self.emit(ev.Forget(name))

    def emit(self, effect: ev.Effect) -> None:
        self.effects.append(effect)

    def decide(
        self,
        kind: str,
        model: str | None,
        reason: str,
        *,
        for_model: str | None = None,
        for_request: str | None = None,
        inputs: Mapping[str, object] | None = None,
    ) -> None:
        """Record a decision with what it was made of."""
        self.emit(ev.Decide(kind, model, reason, for_model, for_request, inputs or {}))

    # -- waiters -------------------------------------------------------------------------------------------

    def add_waiter(self, waiter: Waiter) -> None:
        self.state = replace(self.state, waiters=(*self.state.waiters, waiter))

    def take_waiters(self, which: Callable[[Waiter], bool]) -> list[Waiter]:
        """Let those who fit leave the queue, in order."""
        taken = [waiter for waiter in self.state.waiters if which(waiter)]
        if taken:
            gone = {waiter.id for waiter in taken}
            self.state = replace(self.state, waiters=tuple(w for w in self.state.waiters if w.id not in gone))
        return taken

    def take_waiters_for(self, name: str) -> list[Waiter]:
        """Let those who want this model leave the queue, in order."""
        return self.take_waiters(lambda waiter: waiter.model == name)

    def has_waiters(self, name: str) -> bool:
        return any(waiter.model == name for waiter in self.state.waiters)

    def grant(self, waiter: Waiter) -> None:
        """Hand the ready model to a waiter; the lease counts from here, before anything can be awaited."""
        if waiter.purpose is Purpose.PINNED:
            return
        model = self._models[waiter.model]
        leased = waiter.purpose is Purpose.LEASE
        if leased:
            self.put(replace(model, leases=model.leases + 1, last_used=self.now))
        self.emit(ev.Grant(waiter.id, waiter.model, model.generation, leased))

    def refuse(self, waiter: Waiter, error: RegistryError) -> None:
        if waiter.purpose is not Purpose.PINNED:
            self.emit(ev.Refuse(waiter.id, error))

    def refuse_all(self, name: str, error: RegistryError) -> None:
        """Refuse every waiter of one model."""
        for waiter in self.take_waiters_for(name):
            self.refuse(waiter, error)

    def queue_again(self, name: str) -> None:
        """A model that just left memory is queued once more if somebody wants it."""
        if self.has_waiters(name):
            self.move(name, Move.WANT)

    def forget_unwanted(self) -> None:
        """Queued models whose waiters have all left are not queued any more."""
        wanted = {waiter.model for waiter in self.state.waiters}
        for model in self.models(State.QUEUED):
            if model.name not in wanted:
                self.move(model.name, Move.FORGET)

    def close(self, error: RegistryError) -> None:
        """Admit nothing more and refuse everybody who waits."""
        self.state = replace(self.state, closing=True)
        for waiter in self.take_waiters(lambda _: True):
            self.refuse(waiter, error)

    # -- what is learnt ------------------------------------------------------------------------------------

    def next_generation(self, key: str | None) -> int:
        """The number of a load that starts now, for somebody with this key."""
        loads = self.state.loads + 1
        # one without waiters comes back with a wait that is younger than its turn
        waiting = {waiter.key for waiter in self.state.waiters}
        served = {known: moment for known, moment in self.state.served.items() if known in waiting}
        self.state = replace(self.state, loads=loads, served={**served, key: self.now})
        return loads

    def measured(self, weights: int, seconds: float) -> None:
        """A load of so many bytes took so long."""
        if weights > 0:
            pace = averaged(self.state.seconds_per_byte, seconds / weights)
            self.state = replace(self.state, seconds_per_byte=pace)

    # -- failures and rooms --------------------------------------------------------------------------------

    def backoff(self, attempts: int) -> float:
        """Seconds until the next try after `attempts` earlier failures: doubling, bounded."""
        policy = self.state.policy
        return float(min(policy.retry_backoff * 2 ** min(attempts, 32), policy.max_backoff))

    def load_failed(self, model: Resident) -> ModelLoadFailed:
        """The error for a model in trouble; `retry_at` is on the planner's clock here."""
        trouble = model.trouble
        assert trouble is not None, "only a model in trouble has a load failure"
        failure = Failure(trouble.reason, trouble.message, trouble.attempts, trouble.retry_at)
        return ModelLoadFailed(model.name, failure, max(0.0, trouble.retry_at - self.now))

    def want_room(self, room: RoomWanted) -> None:
        self.state = replace(self.state, rooms=(*self.state.rooms, room))

    def answer_rooms(self) -> None:
        """Tell those whose victims are all gone and, if they wait for that, have settled as well."""
        if not self.state.rooms:
            return
        going = {(model.name, model.generation) for model in self.models(State.UNLOADING)}
        settling = {(residue.model, residue.generation) for residue in self.state.remains.pending(self.now)}
        left = {room.id for room in self.state.rooms if room.victims & (going | settling if room.settle else going)}
        for room in self.state.rooms:
            if room.id not in left:
                self.emit(ev.RoomAnswered(room.id))
        self.state = replace(self.state, rooms=tuple(room for room in self.state.rooms if room.id in left))
