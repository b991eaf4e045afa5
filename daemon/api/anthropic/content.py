"""The blocks of one answer: thoughts and texts as they come, and then the calls.

Calls come last, so that the text around them is one block whether an answer is streamed or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from mlxd.daemon.api.anthropic.objects import (
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputJsonDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from mlxd.daemon.api.anthropic.signature import signature
from mlxd.daemon.api.call_ids import CallIds
from mlxd.engines.types import RequestOutput, ToolCall

THINKING, TEXT = "thinking", "text"
_NO_INPUT = msgspec.Raw(b"{}")


def whole_content(outputs: Sequence[RequestOutput], *, shows_thinking: bool) -> list[AnswerBlock]:
    """All blocks of an answer."""
    ids = CallIds()
    runs = groupby((piece for output in outputs for piece in _pieces(output)), key=lambda piece: piece[0])
    blocks = [_block(kind, "".join(text for _, text in run), shows_thinking=shows_thinking) for kind, run in runs]
    return [*blocks, *(_call_block(call, ids) for output in outputs for call in output.tool_calls)]


class ContentEvents:
    """The same as events. `more` for each output, then `end` once."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._ids = CallIds()
        self._calls: list[ToolCall] = []
        self._index = -1
        self._open: str | None = None
        self._hidden: list[str] = []

    def more(self, output: RequestOutput) -> Iterator[Event]:
        """What an output adds."""
        self._calls += output.tool_calls
        for kind, text in _pieces(output):
            if kind != self._open:
                yield from self._close()
                yield self._start(TextBlock("") if kind == TEXT else ThinkingBlock("", ""))
                self._open = kind
            if kind == TEXT:
                yield BlockDelta(self._index, TextDelta(text))
            elif self._shows_thinking:
                yield BlockDelta(self._index, ThinkingDelta(text))
            else:
                self._hidden.append(text)

    def end(self) -> Iterator[Event]:
        """What is left: the end of an open block, and the calls."""
        yield from self._close()
        for call in self._calls:
            yield self._start(ToolUseBlock(self._ids.give(call.id), call.name, _NO_INPUT))
            yield BlockDelta(self._index, InputJsonDelta(call.arguments))
            yield BlockStop(self._index)

    def _start(self, block: AnswerBlock) -> BlockStart:
        self._index += 1
        return BlockStart(self._index, block)

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open == THINKING:
            yield BlockDelta(self._index, SignatureDelta(signature("".join(self._hidden))))
            self._hidden = []
        self._open = None
        yield BlockStop(self._index)


def _pieces(output: RequestOutput) -> Iterator[tuple[str, str]]:
    if output.reasoning:
        yield THINKING, output.reasoning
    if output.text:
        yield TEXT, output.text


def _block(kind: str, text: str, *, shows_thinking: bool) -> AnswerBlock:
    if kind == TEXT:
        return TextBlock(text)
    return ThinkingBlock(text, signature()) if shows_thinking else ThinkingBlock("", signature(text))


def _call_block(call: ToolCall, ids: CallIds) -> ToolUseBlock:
    return ToolUseBlock(ids.give(call.id), call.name, msgspec.Raw(call.arguments.encode()))
