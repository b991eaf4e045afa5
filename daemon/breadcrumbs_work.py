"""Which models are at work, and on which requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from mlxd.engines.embedding_types import EmbeddingRequest
from mlxd.engines.fingerprint import fingerprint
from mlxd.engines.types import Request

AnyRequest = Request | EmbeddingRequest
AtWork = Callable[[str, Sequence[AnyRequest]], AbstractAsyncContextManager[None]]
"""What is held while a model is at work on requests, at least one; to enter it may take a moment."""

MAX_FINGERPRINTS = 16
"""Requests of one model that are told apart; of more the latest."""


def unrecorded(_model: str, _requests: Sequence[AnyRequest]) -> AbstractAsyncContextManager[None]:
    """Nobody has to know."""
    return nullcontext()


class Traced:
    """A request at work. Its fingerprint is made where it is written, and once."""

    def __init__(self, request: AnyRequest) -> None:
        self._request = request

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self._request)


@dataclass(slots=True)
class _Work:
    """What one model is at; `idle_since` is when the last of its requests ended, in monotonic seconds."""

    requests: dict[Traced, None] = field(default_factory=dict)
    idle_since: float = 0.0


class WorkBook:
    """Models at work, by name. One that was idle for less than `linger` seconds still counts."""

    def __init__(self, linger: float, clock: Callable[[], float]) -> None:
        self._linger = linger
        self._clock = clock
        self._models: dict[str, _Work] = {}

    def begin(self, model: str, requests: Iterable[AnyRequest]) -> tuple[Traced, ...]:
        """A model is about to work on these, at least one; what `end` wants to be given."""
        traced = tuple(map(Traced, requests))
        self._models.setdefault(model, _Work()).requests.update(dict.fromkeys(traced))
        return traced

    def end(self, model: str, traced: Collection[Traced]) -> None:
        """The twin of `begin`."""
        work = self._models[model]
        for each in traced:
            del work.requests[each]
        work.idle_since = self._clock()

    @property
    def lingers(self) -> bool:
        """Whether a model counts that is idle already."""
        return not all(work.requests for work in self._models.values())

    def latest(self) -> dict[str, tuple[Traced, ...]]:
        """The latest requests of each model that counts."""
        idle = self._clock() - self._linger
        self._models = {name: work for name, work in self._models.items() if work.requests or work.idle_since > idle}
        return {name: tuple(islice(reversed(work.requests), MAX_FINGERPRINTS)) for name, work in self._models.items()}


def fingerprints(
    latest: Mapping[str, Collection[Traced]], told: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The fingerprints of each model's requests; for one that is idle already those that were `told` last."""
    return {
        name: tuple(each.fingerprint for each in traced) if traced else told.get(name, ())
        for name, traced in latest.items()
    }
