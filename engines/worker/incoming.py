"""What a worker's engine has for requests, on its way to their readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mlxd.engines.errors import EngineDead
from mlxd.engines.step_result import Delivery, StepResult
from mlxd.engines.worker.error_forms import error_of
from mlxd.engines.worker.forms import ErrorForm
from mlxd.engines.worker.outgoing import Outgoing
from mlxd.engines.worker.to_daemon import Item, Step


class Incoming:
    """The way back of what is `outgoing`; `learn` is told the bytes of tokens."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self.learn: Callable[[Mapping[int, bytes]], None] = lambda _: None

    def result(self, step: Step) -> StepResult:
        """A step's result as the engine knows it."""
        deliveries = [delivery for item in step.items for delivery in self._delivery(item)]
        dead = None if step.dead is None else error_of(step.dead)
        assert dead is None or isinstance(dead, EngineDead), "an engine ends with nothing else"
        return StepResult(deliveries, step.eviction, dead, step.freed)

    def _delivery(self, item: Item) -> Iterator[Delivery]:
        request = self._outgoing.request(item.number)
        self.learn(item.texts)
        if request is None:  # its reader left meanwhile
            return
        if item.output is not None:
            if item.output.finish_reason is not None:
                self._outgoing.over(item.number)
            yield request, item.output
            return
        self._outgoing.over(item.number)
        if item.vectors is not None:
            yield request, item.vectors
        elif item.error is not None:
            yield request, self._error(item.error)

    def _error(self, form: ErrorForm) -> Exception:
        return self._outgoing.ordered(form.order) if form.order else error_of(form)
