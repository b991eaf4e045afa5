"""The inputs that wait for an encoder, and which of them go together."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from mlxd.engines.embedding_types import EmbeddingOutput, EmbeddingRequest, EncoderInput
from mlxd.engines.types import RequestState, RequestStatus, Usage


@dataclass(slots=True, eq=False)
class Work:
    """One request in progress: `waiting` are the numbers of its inputs by the width that they are padded to at most.

    `alone` keeps it out of batches with others, `awaits` is what it waits for before any of it can run. Others were
    asked for room at `asked_at`, and it is held since `held_since`.
    """

    request: EmbeddingRequest
    arrived: float
    vectors: list[bytes | None] = field(default_factory=list)
    waiting: dict[int, deque[int]] = field(default_factory=dict)
    left: int = 0
    alone: bool = False
    awaits: str | None = None
    asked_at: float | None = None
    held_since: float | None = None

    @classmethod
    def of(cls, request: EmbeddingRequest, arrived: float) -> Work:
        """All of a request, none of it done."""
        work = cls(request, arrived, [None] * len(request.inputs), left=len(request.inputs))
        for number in range(len(request.inputs)):
            work.put(number)
        return work

    @property
    def started(self) -> bool:
        """Whether any of it is done."""
        return self.left < len(self.vectors)

    def put(self, number: int) -> None:
        """This input waits."""
        self.waiting.setdefault(padded(len(self.request.inputs[number])), deque()).append(number)

    def pop(self, width: int) -> int:
        """An input of this width, which does not wait any more."""
        numbers = self.waiting[width]
        number = numbers.popleft()
        if not numbers:
            del self.waiting[width]
        return number

    def finish(self, number: int, vector: bytes) -> None:
        """This input is done."""
        self.vectors[number] = vector
        self.left -= 1

    def output(self, now: float, *, cancelled: bool = False) -> EmbeddingOutput:
        """What its reader gets."""
        done = zip(self.request.inputs, self.vectors, strict=True)
        tokens = sum(len(each) for each, vector in done if vector is not None)
        return EmbeddingOutput(tuple(self.vectors), tokens, now - self.arrived, cancelled)

    def status(self, now: float) -> RequestStatus:
        """For readers."""
        state = RequestState.PREFILLING if self.started else RequestState.WAITING
        waits = "memory" if self.awaits else None if self.started else "slot"
        return RequestStatus(
            self.request.id, state, now - self.arrived, Usage(self.request.prompt_tokens), waiting_for=waits
        )


@dataclass(frozen=True, slots=True)
class Item:
    """One input of a batch."""

    work: Work
    number: int

    @property
    def input(self) -> EncoderInput:
        return self.work.request.inputs[self.number]


class InputQueue:
    """Requests in progress, in the order of their turns.

    Each batch is led by the request whose turn it is, and takes inputs of one width from all of them in turn. So a
    request waits for at most one batch of each other, and nothing is padded by more than half.
    """

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._works.values())

    def get(self, request_id: str) -> Work | None:
        return self._works.get(request_id)

    def add(self, work: Work) -> None:
        self._works[work.request.id] = work

    def remove(self, work: Work) -> None:
        self._works.pop(work.request.id, None)

    def take(self, budget: int) -> list[Item]:
        """The next batch: at most `budget` tokens with padding, but one input at least. Empty when all wait."""
        ready = [work for work in self._works.values() if work.awaits is None]
        if not ready:
            return []
        leader = ready[0]
        self._works[leader.request.id] = self._works.pop(leader.request.id)
        width = next(iter(leader.waiting))
        others = () if leader.alone else (work for work in ready[1:] if width in work.waiting and not work.alone)
        sharing = deque((leader, *others))
        batch: list[Item] = []
        while sharing and len(batch) < max(1, budget // width):
            work = sharing.popleft()
            batch.append(Item(work, work.pop(width)))
            if width in work.waiting:
                sharing.append(work)
        return batch

    def put_back(self, batch: Collection[Item]) -> None:
        """These did not run; those of requests that have ended are forgotten."""
        for item in batch:
            item.work.put(item.number)


def padded(length: int) -> int:
    """The width of a batch for inputs of this length: a few between each power of two and the next."""
    step = max(8, 1 << max(0, (length - 1).bit_length() - 2))
    return -(-length // step) * step
