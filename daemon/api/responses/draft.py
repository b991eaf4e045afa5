"""A response in the making: from an engine's outputs to the events of its stream and to the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from msgspec.structs import replace

from mlxd.daemon.api.call_ids import CallIds
from mlxd.daemon.api.errors import ErrorAnswer
from mlxd.daemon.api.inference import Inference
from mlxd.daemon.api.openai.logprobs import chat_logprobs
from mlxd.daemon.api.openai.objects import TokenEntry
from mlxd.daemon.api.responses.events import (
    AnyEvent,
    Completed,
    Created,
    ErrorEvent,
    Failed,
    Incomplete,
    InProgress,
)
from mlxd.daemon.api.responses.items import ItemStatus
from mlxd.daemon.api.responses.kept_items import new_id
from mlxd.daemon.api.responses.objects import (
    Failure,
    FunctionCall,
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    ResponseObject,
    ResponseUsage,
    Status,
)
from mlxd.daemon.api.responses.open_items import OpenMessage, OpenReasoning, call_events
from mlxd.daemon.api.vendor import vendor_of
from mlxd.engines.types import FinishReason, RequestOutput, ToolCall, Usage

# The codes that clients know; all of ours are in the error event that follows.
_FAILURE_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class Draft:
    """One response. It begins with the first event that is sent and ends once, in whatever way; `on_end` gets it then.

    1. Pieces of one kind are one item; a piece of another kind closes it and begins the next.
    2. What ends in the middle, by a limit, a cancel or a fault, is kept as an incomplete item.
    3. A cancel is no failure: the response is `cancelled` and has what was generated.
    """

    def __init__(
        self,
        base: ResponseObject,
        inference: Inference,
        now: Callable[[], float],
        on_end: Callable[[ResponseObject], None],
    ) -> None:
        self._base = base
        self._inference = inference
        self._now = now
        self._on_end = on_end
        self._numbers = count()
        self._call_ids = CallIds()
        self._done: list[OutputItem] = []
        self._open: OpenMessage | OpenReasoning | None = None
        self._unclaimed: list[TokenEntry] = []
        self._usage: Usage | None = None
        self._final: ResponseObject | None = None
        self.begun = False

    @property
    def response(self) -> ResponseObject:
        """The response as far as it is."""
        if self._final is not None:
            return self._final
        growing = [self._open.item("in_progress")] if self._open is not None else []
        return replace(self._base, output=(*self._done, *growing), usage=self._used())

    def beat(self) -> list[AnyEvent]:
        """A sign of life."""
        return self._begin() or [InProgress(next(self._numbers), self._base)]

    def add(self, output: RequestOutput) -> list[AnyEvent]:
        """The events for an output; those of the last one end with the response."""
        self._usage = output.usage
        events = [*self._begin(), *self._pieces(output)]
        if output.finish_reason is None:
            return events
        cut = output.cancelled or output.finish_reason is FinishReason.LENGTH
        events += self._close("incomplete" if cut else "completed")
        return [*events, self._finish(output)]

    def fail(self, error: ErrorAnswer) -> list[AnyEvent]:
        """The last events when nothing more can come. A response that has ended stays as it is."""
        if self._final is not None:
            return [ErrorEvent(next(self._numbers), error.code, error.message, error.param)]
        events = [*self._begin(), *self._close("incomplete")]
        failure = Failure(_FAILURE_CODES.get(error.status, "server_error"), error.message)
        final = self._end("failed", error=failure)
        return [
            *events,
            Failed(next(self._numbers), final),
            ErrorEvent(next(self._numbers), error.code, error.message, error.param),
        ]

    def abandon(self) -> None:
        """Its reader has left: it ends with what it has, if it had begun."""
        if self.begun and self._final is None:
            self._close("incomplete")
            self._end("cancelled")

    def _begin(self) -> list[AnyEvent]:
        if self.begun:
            return []
        self.begun = True
        return [Created(next(self._numbers), self._base), InProgress(next(self._numbers), self._base)]

    def _pieces(self, output: RequestOutput) -> Iterator[AnyEvent]:
        """Log-probabilities wait for text: those of markers and reasoning before it cannot be told from its own."""
        if output.logprobs:
            self._unclaimed += chat_logprobs(output.logprobs, self._inference.token_bytes).content
        if output.reasoning:
            yield from self._reason(output.reasoning)
        if output.text:
            yield from self._say(output.text)
        for call in output.tool_calls:
            yield from self._call(call)
        if output.finish_reason is not None and self._unclaimed and isinstance(self._open, OpenMessage):
            yield self._open.more("", self._claim())

    def _reason(self, text: str) -> Iterator[AnyEvent]:
        if not isinstance(self._open, OpenReasoning):
            yield from self._close("completed")
            self._open = OpenReasoning(new_id("rs"), len(self._done), self._numbers)
            yield from self._open.opening()
        yield self._open.more(text)

    def _say(self, text: str) -> Iterator[AnyEvent]:
        if not isinstance(self._open, OpenMessage):
            yield from self._close("completed")
            self._open = OpenMessage(new_id("msg"), len(self._done), self._numbers)
            yield from self._open.opening()
        yield self._open.more(text, self._claim())

    def _call(self, call: ToolCall) -> Iterator[AnyEvent]:
        yield from self._close("completed")
        made = FunctionCall(new_id("fc"), self._call_ids.give(call.id), call.name, call.arguments, "completed")
        yield from call_events(made, len(self._done), self._numbers)
        self._done.append(made)

    def _claim(self) -> list[TokenEntry]:
        claimed, self._unclaimed = self._unclaimed, []
        return claimed

    def _close(self, status: ItemStatus) -> list[AnyEvent]:
        if self._open is None:
            return []
        events = self._open.closing(status)
        self._done.append(self._open.item(status))
        self._open = None
        return events

    def _finish(self, output: RequestOutput) -> AnyEvent:
        vendor = vendor_of(self._inference, output)
        if output.cancelled:
            return Completed(next(self._numbers), self._end("cancelled", mlxd=vendor))
        if output.finish_reason is FinishReason.LENGTH:
            final = self._end("incomplete", incomplete_details=IncompleteDetails(), mlxd=vendor)
            return Incomplete(next(self._numbers), final)
        final = self._end("completed", completed_at=int(self._now()), mlxd=vendor)
        return Completed(next(self._numbers), final)

    def _end(self, status: Status, **changes: object) -> ResponseObject:
        self._final = replace(self._base, status=status, output=tuple(self._done), usage=self._used(), **changes)
        self._on_end(self._final)
        return self._final

    def _used(self) -> ResponseUsage | None:
        return usage_object(self._usage) if self._usage is not None else None


def usage_object(usage: Usage) -> ResponseUsage:
    """Token counts as the Responses API shows them."""
    return ResponseUsage(
        usage.prompt_tokens,
        InputTokensDetails(usage.cached_tokens),
        usage.completion_tokens,
        OutputTokensDetails(),
        usage.prompt_tokens + usage.completion_tokens,
    )
