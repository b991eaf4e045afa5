"""Writes one choice of a chat answer: message or deltas, with reasoning, tool calls and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from msgspec import UNSET

from mlxd.daemon.api.call_ids import CallIds
from mlxd.daemon.api.openai.logprobs import TokenBytes, chat_logprobs
from mlxd.daemon.api.openai.objects import (
    AnswerMessage,
    Call,
    CallDelta,
    CalledFunction,
    ChatChoice,
    ChunkChoice,
    Delta,
    FunctionDelta,
)
from mlxd.engines.types import FinishReason, RequestOutput, ToolCall


class ChatWriter:
    """One choice. Use either `whole`, or `opening` and then `steps` for each output."""

    def __init__(self, index: int, ids: CallIds, token_bytes: TokenBytes, *, logprobs: bool) -> None:
        self._index = index
        self._ids = ids
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        self._places = count()
        self._called = False

    def opening(self) -> list[ChunkChoice]:
        """What a stream starts with."""
        return [ChunkChoice(self._index, Delta(role="assistant", content=""))]

    def steps(self, output: RequestOutput) -> list[ChunkChoice]:
        """The next steps of a stream; those of the last output end with the finish reason."""
        deltas = list(self._deltas(output))
        reason = self._reason(output)
        if reason is not None or (output.logprobs and not deltas):
            deltas.append(Delta())
        last = len(deltas) - 1
        logprobs = chat_logprobs(output.logprobs, self._token_bytes) if output.logprobs else None
        return [
            ChunkChoice(self._index, delta, None if place else logprobs, reason if place == last else None)
            for place, delta in enumerate(deltas)
        ]

    def whole(self, output: RequestOutput) -> ChatChoice:
        """The choice in one piece."""
        calls = [self._call(call) for call in output.tool_calls]
        message = AnswerMessage(
            content=output.text if output.text or not calls else None,
            reasoning_content=output.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        logprobs = chat_logprobs(output.logprobs, self._token_bytes) if self._logprobs else None
        reason = self._reason(output)
        assert reason is not None, "a whole choice has ended"
        return ChatChoice(self._index, message, reason, logprobs)

    def _deltas(self, output: RequestOutput) -> Iterator[Delta]:
        if output.reasoning:
            yield Delta(reasoning_content=output.reasoning)
        if output.text:
            yield Delta(content=output.text)
        for call in output.tool_calls:
            place, made = next(self._places), self._call(call)
            name = FunctionDelta(made.function.name, "")
            yield Delta(tool_calls=[CallDelta(index=place, id=made.id, type=made.type, function=name)])
            arguments = FunctionDelta(arguments=made.function.arguments)
            yield Delta(tool_calls=[CallDelta(index=place, function=arguments)])

    def _call(self, call: ToolCall) -> Call:
        self._called = True
        return Call(self._ids.give(call.id), CalledFunction(call.name, call.arguments))

    def _reason(self, output: RequestOutput) -> str | None:
        if output.finish_reason is None:
            return None
        if self._called and output.finish_reason is FinishReason.STOP and not output.cancelled:
            return "tool_calls"
        return str(output.finish_reason)
