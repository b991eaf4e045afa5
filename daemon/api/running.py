"""Every request that is being answered, wherever it is: waiting for its model, being tokenised, or in an engine."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from msgspec import Struct

from mlxd.engines.types import RequestState, RequestStatus
from mlxd.registry.residency import Waiter


class Interrupted(Exception):
    """The request was cancelled on purpose before its engine had it."""


class Phase(enum.StrEnum):
    """Where a request is; from ADMITTED on its engine knows better."""

    QUEUED = "queued"
    TOKENIZING = "tokenizing"
    ADMITTED = "waiting"


class RequestView(Struct, frozen=True):
    """One live request for readers. `position` counts from 1 among those that wait for the same thing."""

    id: str
    model: str
    api: str
    state: str
    position: int | None
    age_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    decode_tps: float | None
    waiting_for: str | None
    key: str | None


class Answering(Protocol):
    """Who has a request and makes its answer: an engine, or a peer."""

    def cancel(self, request_id: str, /) -> bool:
        """End a sequence, whose reader gets what was generated; whether it lives and can be ended."""

    def requests(self) -> tuple[RequestStatus, ...]:
        """The sequences that it has."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A sequence as its engine sees it, with its place among those that wait there."""

    status: RequestStatus
    place: int | None


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request from its arrival to its last byte; `since` is monotonic seconds.

    In its engine it is one sequence for each answer that it asked for. `ended` of them are over, with `ended_tokens`;
    `generated_tokens` are those of all of them that were handed on.
    `waits_for` is what a queued one waits for, None while something is done for it.
    """

    id: str
    model: str
    api: str
    key: str | None
    since: float
    phase: Phase = Phase.QUEUED
    engine: Answering | None = None
    prompt_tokens: int = 0
    ended_tokens: int = 0
    generated_tokens: int = 0
    waits_for: str | None = "model"
    sequences: tuple[str, ...] = ()
    ended: int = 0
    on_change: Callable[[str], None] = lambda _: None
    _cancelled: bool = False
    _scope: asyncio.Timeout | None = None

    def sequence_id(self, place: int) -> str:
        """The engine's id for one of the sequences. No request can be called so: "#" is in no id that is taken."""
        return f"{self.id}#{place}" if place else self.id

    @contextmanager
    def waiting_for(self, what: str | None) -> Iterator[None]:
        """While it is queued, say that it waits for this rather than for its model."""
        before, self.waits_for = self.waits_for, what
        self.on_change(self.id)
        try:
            yield
        finally:
            self.waits_for = before
            self.on_change(self.id)

    def tokenize(self) -> None:
        """It has its model, and its prompt is made into tokens."""
        self.phase = Phase.TOKENIZING
        self.on_change(self.id)

    def admit(self, engine: Answering, sequences: int) -> None:
        """The engine has the request now, as so many sequences, and cancels it."""
        self.phase = Phase.ADMITTED
        self.engine = engine
        self.sequences = tuple(map(self.sequence_id, range(sequences)))
        self.on_change(self.id)

    @property
    def is_cancelled(self) -> bool:
        """Whether it was ended on purpose."""
        return self._cancelled

    @property
    def is_complete(self) -> bool:
        """Whether all its answers have come to their end."""
        return 0 < len(self.sequences) == self.ended

    def end_one(self, tokens: int) -> None:
        """One of its answers is complete."""
        self.ended += 1
        self.ended_tokens += tokens

    def cancel(self) -> bool:
        """End it on purpose; its reader gets what was generated. False when it has ended already."""
        if self.engine is not None:
            found = sum(map(self.engine.cancel, self.sequences)) > 0
            self._cancelled = self._cancelled or found
            return found
        if not self._cancelled:
            self._cancelled = True
            if self._scope is not None:
                self._scope.reschedule(asyncio.get_running_loop().time())
        return True

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """Let `cancel` end what is awaited inside, which then raises Interrupted. Not to be held over a yield."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._scope = None
        if self._cancelled:
            raise Interrupted


class RunningRequests:
    """Live requests by id. Used on the event loop only.

    `on_change` is told the id of a request that comes, moves on or ends, `on_end` one that is over and what it raised.
    Both may be set at any time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: Callable[[str], None] = lambda _: None
        self.on_end: Callable[[LiveRequest, BaseException | None], None] = lambda _request, _error: None
        self._clock = clock
        self._live: dict[str, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._live

    @contextmanager
    def track(self, wanted_id: str, model: str, api: str, key: str | None = None) -> Iterator[LiveRequest]:
        """Keep a request for as long as it lives, under `wanted_id` or, if that is taken, one with a suffix."""
        free_id = self._free_id(wanted_id)
        request = LiveRequest(free_id, model, api, key, self._clock(), on_change=self._changed)
        self._live[request.id] = request
        self._changed(request.id)
        try:
            yield request
        except BaseException as error:
            self.on_end(request, error)
            raise
        else:
            self.on_end(request, None)
        finally:
            del self._live[request.id]
            self._changed(request.id)

    def cancel(self, request_id: str, owner: str | None = None) -> bool:
        """End a request on purpose. False when there is none of this id, or none that came with the key `owner`."""
        request = self._live.get(request_id)
        return request is not None and owner in (None, request.key) and request.cancel()

    def others_come(self, live: LiveRequest) -> bool:
        """Whether another request for the same model is on its way to the engine."""
        return any(
            other is not live and other.model == live.model and other.phase is not Phase.ADMITTED
            for other in self._live.values()
        )

    def views(self, waiting: Iterable[Waiter], only: Collection[str] | None = None) -> list[RequestView]:
        """Live requests, oldest first: all, or `only` these ids. `waiting` is who waits for a model, in order."""
        wanted = [request for request in self._live.values() if only is None or request.id in only]
        places = {waiter.request_id: place for place, waiter in enumerate(waiting, start=1)}
        engines = {id(request.engine): request.engine for request in wanted if request.engine is not None}
        inside = {key: _placed(engine.requests()) for key, engine in engines.items()}
        return [self._view(request, places, inside.get(id(request.engine), {})) for request in wanted]

    def _view(
        self, request: LiveRequest, places: Mapping[str | None, int], inside: Mapping[str, Placed]
    ) -> RequestView:
        found = [inside[sequence] for sequence in request.sequences if sequence in inside]
        foremost = min(found, key=_distance, default=None)
        state, waiting_for, place = str(request.phase), None, None
        if foremost is not None:
            state, waiting_for, place = str(foremost.status.state), foremost.status.waiting_for, foremost.place
        if request.phase is Phase.QUEUED:
            place, waiting_for = places.get(request.id), request.waits_for
        rates = [each.status.decode_tps for each in found if each.status.decode_tps is not None]
        return RequestView(
            id=request.id,
            model=request.model,
            api=request.api,
            state=state,
            position=place,
            age_s=round(self._clock() - request.since, 3),
            prompt_tokens=request.prompt_tokens,
            cached_tokens=foremost.status.usage.cached_tokens if foremost is not None else 0,
            completion_tokens=request.ended_tokens + sum(each.status.usage.completion_tokens for each in found),
            decode_tps=sum(rates) if rates else None,
            waiting_for=waiting_for,
            key=request.key,
        )

    def _changed(self, request_id: str) -> None:
        self.on_change(request_id)

    def _free_id(self, wanted: str) -> str:
        if wanted not in self._live:
            return wanted
        return next(name for number in count(2) if (name := f"{wanted}-{number}") not in self._live)


def _placed(statuses: Iterable[RequestStatus]) -> dict[str, Placed]:
    places = count(1)
    return {
        status.id: Placed(status, next(places) if status.state is RequestState.WAITING else None) for status in statuses
    }


def _distance(placed: Placed) -> tuple[int, int]:
    return list(RequestState)[::-1].index(placed.status.state), placed.place or 0
