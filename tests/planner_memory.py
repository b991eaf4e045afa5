"""The memory of the world outside the planner, and what is promised of it. Bytes and seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from mlxd.registry.planner import REMEASURE, next_deadline
from mlxd.registry.queue import blocked
from mlxd.registry.remains import SETTLE
from mlxd.registry.residency import Held, MemoryReading, Residency, Resident
from mlxd.registry.states import RESIDENT, State


@dataclass
class Memory:
    """What engines have, by name; what those that are gone `left`, or have kept in `stuck`; and what is measured beyond
    all of that in `extra`, which may be negative.

    With `reuses`, who takes memory takes first what was left; `taken` is how much of it each load did. `credits` are
    the bytes that were given back, with the moment from which they may count as free; loads have used them up, oldest
    first. `whole` has the engines, by name and load, that left all they had since the last load began, with that moment
    and the bytes. `calm` is a world without anything stuck or extra so far, `dipped` one that had less in use than
    there was.
    """

    limit: int = 100
    limit_now: int | None = None
    extra: int = 0
    left: int = 0
    stuck: int = 0
    reuses: bool = True
    calm: bool = True
    dipped: bool = False
    engines: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    credits: list[tuple[float, int]] = field(default_factory=list)
    whole: dict[tuple[str, int], tuple[float, int]] = field(default_factory=dict)

    def copy(self) -> Memory:
        return replace(
            self, engines=dict(self.engines), taken=dict(self.taken), credits=list(self.credits), whole=dict(self.whole)
        )

    def reading(self, held: Mapping[str, Held]) -> MemoryReading:
        """What is measured now."""
        used = max(0, self.extra + self.left + self.stuck + sum(self.engines.values()))
        return MemoryReading(self.limit, "memory.ceiling", used, 0, held=held, limit_now=self.limit_now)

    # -- what happens to it --------------------------------------------------------------------------------

    def starts(self, name: str, size: int) -> None:
        """A load begins."""
        self.engines[name] = size
        self.whole.clear()
        self.taken[name] = self._reuse(size)
        self._use_credits(size)

    def loaded(self, name: str, size: int, now: float) -> None:
        """A load turns out to need so much: what it did not take is where it was."""
        spared = self.engines[name] - size
        if spared > 0:
            back = min(spared, self.taken[name])
            self.left += back
            self.credits.append((now + SETTLE, spared))
        self.grown(name, size)

    def grown(self, name: str, size: int) -> None:
        """An engine has so much now."""
        self._reuse(size - self.engines[name])
        self.engines[name] = size

    def gone(self, name: str, charge: int, stays: float, now: float, *, clean: bool) -> int:
        """An engine is gone that was charged with so much, and some of what it had is in use still; how much it had."""
        had = self.engines.pop(name)
        if clean:
            self.left += int(had * stays)
            self.credits.append((now + SETTLE, max(had, charge)))
        else:
            self.stuck += int(had * stays)
            self.calm = False
        return had

    def take(self, extra: int) -> None:
        """Something else takes memory, or engines have less than they think."""
        self.extra = extra
        self.calm = self.calm and not extra
        self.dipped = self.dipped or extra < 0

    def comes_back(self, share: float) -> None:
        self.left -= int(self.left * share)
        self.stuck -= int(self.stuck * share)

    def seen(self, state: Residency) -> None:
        """The planner has looked: when no more is in use than the books know of, all that was given back is free."""
        resident = [m for m in state.models.values() if m.state in RESIDENT]
        # what is promised to requests is on the books, but nobody has it yet
        used = state.memory.base + sum(max(m.admitted, self.engines.get(m.name, 0)) for m in resident)
        if state.memory.measured <= used and not any(m.state is State.UNLOADING for m in resident):
            self.credits = []

    def calm_down(self) -> None:
        """Nobody else needs memory any more. What was left stays only where it is of use, and nothing confused it."""
        self.extra = self.stuck = 0
        self.limit_now = None
        if not self.stays:
            self.left = 0

    def keep_below_the_limit(self) -> None:
        """The system takes what was left above the limit."""
        self.left = max(0, min(self.left, self.limit - sum(self.engines.values())))

    @property
    def stays(self) -> float:
        """How much of what an engine had stays in use from now on: all of it where it is used again."""
        return 1.0 if self.reuses and self.calm else 0.0

    def settled(self, now: float) -> int:
        """At most so much may count as free though it is measured."""
        return sum(size for due, size in self.credits if due <= now)

    def all_there(self, gone: Collection[tuple[str, int]], now: float) -> bool:
        """Whether one of these has left something a moment ago, and nothing of what anybody left was used or is free:
        whose bytes came back cannot be told.
        """
        fresh = [size for key, (due, size) in self.whole.items() if key in gone and now < due and size]
        nothing_came_back = self.calm and self.left == sum(size for _, size in self.whole.values())
        return bool(fresh) and nothing_came_back and len(self.credits) == len(self.whole)

    def settled_for_good(self, now: float) -> bool:
        return all(due <= now for due, _ in self.credits)

    def _reuse(self, size: int) -> int:
        reused = min(self.left, max(0, size)) if self.reuses else 0
        self.left -= reused
        return reused

    def _use_credits(self, size: int) -> None:
        rest = []
        for due, credit in self.credits:
            used = min(credit, size)
            size -= used
            if used < credit:
                rest.append((due, credit - used))
        self.credits = rest


# -- what is promised -----------------------------------------------------------------------------------------


def check_memory(memory: Memory, after: Residency, starts: Collection[str], now: float) -> None:
    """These loads start below the limit that holds now, and into nothing that somebody has.

    Each by itself: what loads that start in the same moment will take is on the books and cannot be measured yet.
    """
    reading = after.memory
    before = [m for m in after.models.values() if m.state in RESIDENT and m.name not in starts]
    booked = reading.base + sum(charged(after, m) for m in before)
    needs = [after.models[name].need for name in starts]
    assert booked + sum(needs) <= reading.present_limit, "the books are above the limit"
    assert reading.measured <= reading.present_limit, "a load was started while too much is in use"
    reused = reading.measured + max(needs) - reading.present_limit
    assert reused <= memory.settled(now), "a load was started into memory that nobody has given back"
    stuck = 0 if memory.dipped else memory.stuck
    assert reused <= max(0, reading.measured - booked - stuck), "a load was started into memory of an abandoned engine"


def check_patience(memory: Memory, state: Residency, now: float) -> None:
    """What was given back keeps nobody waiting for longer than its time: a model that fits by the books loads."""
    queue = blocked(state)
    resident = [m for m in state.models.values() if m.state in RESIDENT]
    under_way = any(m.state is State.UNLOADING for m in resident)
    loading = [m for m in resident if m.state is State.LOADING]
    if not queue or under_way or len(loading) >= state.policy.max_loading:
        return
    if not (memory.calm and memory.reuses and memory.settled_for_good(now)):
        return
    first, reading = state.models[queue[0].model], state.memory
    if reading.measured > reading.present_limit:
        return
    booked = reading.base + sum(charged(state, m) for m in resident)
    if reading.measured - booked > memory.left:
        return  # some model has more than it was charged with
    places = state.policy.max_loaded
    fits = booked + first.need <= reading.present_limit and (not places or len(resident) < places)
    assert not fits, f"{first.name} waits for memory that was given back long ago"


def check_looks(state: Residency, now: float) -> None:
    """Memory is measured again soon while somebody waits who may have to wait no longer then."""
    queue, reading = blocked(state), state.memory
    booked = reading.base + sum(charged(state, m) for m in state.models.values() if m.state in RESIDENT)
    short = reading.measured > booked or reading.present_limit < reading.limit
    if (queue and short) or (state.rooms and state.remains.pending(now)):
        due = next_deadline(state, now)
        assert due is not None, "nobody looks again"
        assert due <= now + REMEASURE, "nobody looks again soon"


def fits_without(state: Residency, model: Resident, gone: Collection[str], now: float) -> bool:
    """Whether a model fits once these are gone and what was given back a moment ago is free."""
    reading, remains = state.memory, state.remains
    staying = [m for m in state.models.values() if m.state in RESIDENT and m.name not in gone]
    coming = sum(charged(state, state.models[name]) for name in gone)
    booked = reading.base + sum(charged(state, m) for m in staying)
    unbooked = max(0, reading.measured - booked - coming)
    given_back = max(0, unbooked - remains.lost)
    settled = min(remains.settled(now), given_back)
    pending = min(sum(residue.bytes for residue in remains.pending(now)), given_back - settled)
    free = reading.present_limit - booked - unbooked + pending
    limit = state.policy.max_loaded
    return max(0, model.need - settled) <= free and (limit == 0 or len(staying) < limit)


def charged(state: Residency, model: Resident) -> int:
    """What a model in memory was let in with, or what it holds if that is more."""
    held = state.memory.held.get(model.name)
    return model.admitted if held is None else max(model.admitted, held.weights + held.kv + held.promised)
