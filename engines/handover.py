"""Steps that are shorter than anybody can see share one way to the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from mlxd.engines.merged_outputs import merged
from mlxd.engines.step_result import Delivery, StepResult
from mlxd.engines.types import RequestOutput

# Seconds for which text may be held back. Each wake-up of the event loop, each chunk that is written and each one that
# a client reads takes tens of microseconds of the cores that compute; of a model that takes longer for a token than
# this, each is handed on at once.
HOLD = 0.004


class Handover:
    """Hands on the results of steps, in order for each request; `post` is called on the lane.

    Text between the first and the last of an answer may wait for the next steps, while they are short for no longer
    than HOLD. Whoever is about to do what may take longer calls `flush`.
    """

    def __init__(self, post: Callable[[StepResult], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._post = post
        self._clock = clock
        self._held = StepResult()
        self._posted_at = float("-inf")

    def put(self, result: StepResult) -> None:
        """Hand a result on, now or with what follows."""
        if not result:
            return
        held = self._held
        held.deliveries += result.deliveries
        held.freed += result.freed
        held.eviction, held.dead = result.eviction, result.dead
        if not _may_wait(result) or self._clock() - self._posted_at >= HOLD:
            self.flush()

    def flush(self) -> None:
        """Hand on what is held back."""
        if self._held:
            held, self._held = self._held, StepResult()
            held.deliveries = _joined(held.deliveries)
            self._posted_at = self._clock()
            self._post(held)


def _may_wait(result: StepResult) -> bool:
    """Whether it is nothing but text in the middle of answers."""
    if result.eviction is not None or result.dead is not None or result.freed:
        return False
    return all(
        isinstance(item, RequestOutput) and item.finish_reason is None and item.usage.completion_tokens > 1
        for _, item in result.deliveries
    )


def _joined(deliveries: list[Delivery]) -> list[Delivery]:
    """In as few as the order of each request allows; an error is the last of its request."""
    by_request: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        by_request.setdefault(id(delivery[0]), []).append(delivery)
    if len(by_request) == len(deliveries):
        return deliveries
    return [delivery for own in by_request.values() for delivery in _of_one(own)]


def _of_one(own: list[Delivery]) -> Iterable[Delivery]:
    request = own[0][0]
    yield from ((request, output) for output in merged(item for _, item in own if isinstance(item, RequestOutput)))
    yield from (delivery for delivery in own if not isinstance(delivery[1], RequestOutput))
