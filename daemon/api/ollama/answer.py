"""From an engine's outputs to an Ollama answer, whole or line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, structs

from mlxd.daemon.api.call_ids import CallIds
from mlxd.daemon.api.errors import ErrorAnswer
from mlxd.daemon.api.inference import Inference
from mlxd.daemon.api.interleave import Indexed
from mlxd.daemon.api.ollama.errors import error_body
from mlxd.daemon.api.ollama.logprobs import logprobs_of
from mlxd.daemon.api.ollama.moments import nanoseconds, rfc3339
from mlxd.daemon.api.ollama.objects import (
    Answer,
    AnswerMessage,
    Call,
    CalledFunction,
    ChatAnswer,
    GenerateAnswer,
)
from mlxd.daemon.api.services import Services
from mlxd.daemon.api.vendor import vendor_of
from mlxd.engines.types import RequestOutput, ToolCall

NDJSON = "application/x-ndjson"

# In JSON the first two are spaces. Next line, line separator and paragraph separator it may have as they are.
_LINE_ENDS = (
    *((b"\n", b" "), (b"\r", b" ")),
    *(("\x85".encode(), b"\\u0085"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029")),
)

A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True)
class Said:
    """What the model has said, or what is new of it."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[Call] = ()


# Makes an answer that is not done, for a model's name and a moment.
Wording = Callable[[str, str, Said], A]


def chat_answer(model: str, created_at: str, said: Said) -> ChatAnswer:
    """A message."""
    message = AnswerMessage(
        role="assistant",
        content=said.text,
        thinking=said.thinking or UNSET,
        tool_calls=list(said.calls) if said.calls else UNSET,
    )
    return ChatAnswer(model=model, created_at=created_at, done=False, message=message)


def generate_answer(model: str, created_at: str, said: Said) -> GenerateAnswer:
    """A text."""
    return GenerateAnswer(
        model=model, created_at=created_at, done=False, response=said.text, thinking=said.thinking or UNSET
    )


@dataclass(slots=True)
class Printer(Generic[A]):
    """Makes the objects of one answer; `model` is the name that the client knows."""

    services: Services
    inference: Inference
    model: str
    wording: Wording[A]
    logprobs: bool
    started: float
    _ids: CallIds = field(default_factory=CallIds)
    _places: Iterator[int] = field(default_factory=count)

    def piece(self, output: RequestOutput) -> A:
        """What an output adds."""
        answer = self._answer(Said(output.text, output.reasoning, [self._call(call) for call in output.tool_calls]))
        if not self.logprobs:
            return answer
        return structs.replace(answer, logprobs=logprobs_of(output.logprobs, self.inference.token_bytes))

    def nothing(self) -> A:
        """A piece without anything new."""
        return self._answer(Said())

    def ended(self, answer: A, output: RequestOutput) -> A:
        """An answer with what is known at its end, from the last output."""
        timing, usage = output.timing, output.usage
        total = self.services.clock() - self.started
        until_first = self.inference.ttft_s(timing)
        return structs.replace(
            answer,
            done=True,
            done_reason=str(output.finish_reason),
            total_duration=nanoseconds(total),
            load_duration=nanoseconds(self.inference.queue_s),
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=nanoseconds(timing.prefill_s),
            eval_count=usage.completion_tokens,
            eval_duration=nanoseconds(None if until_first is None else total - until_first),
            mlxd=vendor_of(self.inference, output),
        )

    def without_request(self, reason: str) -> A:
        """The answer to a call that only loaded or unloaded the model."""
        total = nanoseconds(self.services.clock() - self.started)
        load = nanoseconds(self.inference.queue_s)
        return structs.replace(self.nothing(), done=True, done_reason=reason, total_duration=total, load_duration=load)

    def whole(self, outputs: Sequence[Indexed]) -> A:
        """The answer in one piece."""
        output = RequestOutput.joined([output for _, output in outputs])
        return self.ended(self.piece(output), output)

    def _answer(self, said: Said) -> A:
        return self.wording(self.model, rfc3339(self.services.wall_clock()), said)

    def _call(self, call: ToolCall) -> Call:
        # as the model wrote them, which may hold more than can be read and written again: 1e999, half a character
        arguments = msgspec.Raw(call.arguments.encode())
        return Call(self._ids.give(call.id), CalledFunction(next(self._places), call.name, arguments))


class LineWriter(Generic[A]):
    """JSON objects, one a line. While the request waits there are pieces without anything new: they change nothing for
    a client, and tell proxies that the stream is alive.
    """

    def __init__(self, printer: Printer[A]) -> None:
        self._printer = printer

    def write(self, _: int, output: RequestOutput) -> bytes:
        """A line for what is new, and one for the end."""
        lines = b""
        if output.text or output.reasoning or output.tool_calls or output.logprobs:
            lines += _encoded(self._printer.piece(output))
        if output.finish_reason is not None:
            lines += _encoded(self._printer.ended(self._printer.nothing(), output))
        return lines

    def beat(self, _: str) -> bytes:
        """A line without anything new."""
        return _encoded(self._printer.nothing())

    def end(self) -> bytes:
        """Nothing: the last output's line says that it is done."""
        return b""

    def fail(self, error: ErrorAnswer) -> bytes:
        """A line with the error."""
        return _line(error_body(error))


def _line(data: bytes) -> bytes:
    """JSON as one line, for clients that also take Unicode's line ends for the end of one."""
    for character, escaped in _LINE_ENDS:
        data = data.replace(character, escaped)
    return data + b"\n"


def _encoded(answer: Answer) -> bytes:
    return _line(msgspec.json.encode(answer))
