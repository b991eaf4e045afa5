"""From a job to the bytes of an Anthropic message, whole or streamed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import web

from mlxd.daemon.api.anthropic.content import ContentEvents, whole_content
from mlxd.daemon.api.anthropic.failure import failure
from mlxd.daemon.api.anthropic.objects import (
    Event,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    Stopped,
)
from mlxd.daemon.api.errors import ErrorAnswer
from mlxd.daemon.api.inference import Inference, Job
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.sse import comment, named_frame
from mlxd.daemon.api.streaming import collect, stream_answer
from mlxd.daemon.api.vendor import vendor_of
from mlxd.engines.types import FinishReason, RequestOutput, Usage


@dataclass(frozen=True, slots=True)
class Printer:
    """Makes the objects of one answer; `model` is the name that the client knows."""

    inference: Inference
    model: str
    shows_thinking: bool

    def opening(self, output: RequestOutput) -> MessageAnswer:
        """The message before it has anything; `output` is its first one."""
        used = Usage(output.usage.prompt_tokens, 0, output.usage.cached_tokens)
        return MessageAnswer(id=self._id, model=self.model, content=[], usage=usage_object(used))

    def whole(self, outputs: list[RequestOutput]) -> MessageAnswer:
        """The message in one piece."""
        last = RequestOutput.joined(outputs)
        stopped = stopped_by(last, called=bool(last.tool_calls))
        return MessageAnswer(
            id=self._id,
            model=self.model,
            content=whole_content(outputs, shows_thinking=self.shows_thinking),
            usage=usage_object(last.usage),
            stop_reason=stopped.stop_reason,
            stop_sequence=stopped.stop_sequence,
            mlxd=vendor_of(self.inference, last),
        )

    def closing(self, output: RequestOutput, *, called: bool) -> MessageDelta:
        """The end of the message; `output` is its last one."""
        return MessageDelta(
            stopped_by(output, called=called), usage_object(output.usage), vendor_of(self.inference, output)
        )

    @property
    def _id(self) -> str:
        return f"msg_{self.inference.id}"


class EventWriter:
    """Events with their names, with pings while the request waits."""

    def __init__(self, printer: Printer, request_id: str) -> None:
        self._printer = printer
        self._request_id = request_id
        self._content = ContentEvents(shows_thinking=printer.shows_thinking)
        self._started = False
        self._called = False

    def write(self, choice: int, output: RequestOutput) -> bytes:  # noqa: ARG002 - there is one
        """The events for one output. What is not shown yet is a ping, so that the stream does not look dead."""
        return b"".join(map(named_frame, self._events(output))) or named_frame(Ping())

    def beat(self, progress: str) -> bytes:
        """A ping, and what the request waits for as a comment."""
        return comment(progress) + named_frame(Ping())

    def end(self) -> bytes:
        """The last event."""
        return named_frame(MessageStop())

    def fail(self, error: ErrorAnswer) -> bytes:
        """The error as an event."""
        return named_frame(failure(error, self._request_id))

    def _events(self, output: RequestOutput) -> Iterator[Event]:
        if not self._started:
            self._started = True
            yield MessageStart(self._printer.opening(output))
        self._called = self._called or bool(output.tool_calls)
        yield from self._content.more(output)
        if output.finish_reason is not None:
            yield from self._content.end()
            yield self._printer.closing(output, called=self._called)


async def respond(request: web.Request, job: Job, name: str | None, *, shows_thinking: bool) -> web.StreamResponse:
    """Run a job and answer with it, streamed if its options say so; `name` is what the client called the model."""
    inference = Inference(services_of(request), job)
    printer = Printer(inference, name or job.resolved.model, shows_thinking)
    if job.options.stream:
        return await stream_answer(request, inference, EventWriter(printer, request_id_of(request)))
    answer = printer.whole([output for _, output in await collect(inference)])
    return json_answer(answer)


def stopped_by(output: RequestOutput, *, called: bool) -> Stopped:
    """Why an answer ended, from its last output; `called` is whether it has made calls."""
    if output.cancelled:
        return Stopped("end_turn", None)
    if output.finish_reason is FinishReason.LENGTH:
        return Stopped("max_tokens", None)
    if called:
        return Stopped("tool_use", None)
    return Stopped("end_turn", None) if output.stop is None else Stopped("stop_sequence", output.stop)


def usage_object(usage: Usage) -> MessageUsage:
    """Token counts as Anthropic shows them: what the prefix cache gave is not among the input's own."""
    own = usage.prompt_tokens - usage.cached_tokens
    return MessageUsage(own, usage.completion_tokens, usage.cached_tokens)
