"""A chat's answer taken apart: the model's reasoning, its tool calls, and the text that is left."""

from __future__ import annotations

from collections.abc import Sequence

from mlxd.engines.answer_format import CALL, REASONING, TEXT, Edges, MarkerScan
from mlxd.engines.answer_parts import ContentText, ReasoningText
from mlxd.engines.backend import TextPiece
from mlxd.engines.call_parser import MAX_CALL_LENGTH, CallParser
from mlxd.engines.stop_text import StopText
from mlxd.engines.token_text import TokenText
from mlxd.engines.types import ChatFormat, ToolCall

_NOTHING = TextPiece()


class AnswerText:
    """One chat answer. `stopped` turns True with a stop string in its text, or with the last call that is allowed.

    1. Markers are never shown, however they are spread over tokens; half a marker at the end is text.
    2. Reasoning and text are shown as they come, and a call when it is complete.
    3. What stands between the markers of a call and is none, a call longer than MAX_CALL_LENGTH, and one that the
       answer's end cuts off come out as they were written, markers included: as reasoning if they began in it, else
       as text. Where a model has no marker for the end of a call, the end of the answer is it.
    4. Stop strings count in text alone: they cut neither reasoning nor a call.
    """

    def __init__(
        self,
        tokens: TokenText,
        stop: StopText | None,
        edges: Edges,
        *,
        state: str,
        markers: tuple[str, str] | None,
        parser: CallParser | None,
        chat: ChatFormat,
    ) -> None:
        self._tokens = tokens
        self._stop = stop
        self._scan = MarkerScan(edges, state)
        self._state = state
        self._start, self._end = markers or ("", "")
        self._parser = parser
        self._chat = chat
        self._content, self._reasoning = ContentText(stop), ReasoningText()
        self._calls: list[ToolCall] = []
        self._made = 0
        self._has_all_calls = False
        # Of the call that is being written: where it began, and its text so far.
        self._origin = TEXT
        self._body: list[str] = []
        self._body_length = 0
        if state == REASONING:
            self._content.end_run()

    @property
    def stopped(self) -> bool:
        return self._has_all_calls or self._content.stopped

    @property
    def stop(self) -> str | None:
        return None if self._stop is None else self._stop.matched

    def push(self, token: int) -> TextPiece:
        """Decode one token; what became safe to show."""
        text = self._tokens.push(token)
        if self._stop is not None:
            self._stop.count_token()
        if not text or self.stopped:
            return _NOTHING
        self._read(text)
        return self._take()

    def finish(self) -> TextPiece:
        """What is left at the end of the sequence."""
        if self.stopped:
            return _NOTHING
        self._read(self._tokens.finish())
        if not self.stopped:
            self._finish_state(self._scan.flush())
            self._content.finish()
        return self._take()

    def _take(self) -> TextPiece:
        text, reasoning = self._content.take(), self._reasoning.take()
        if not (text or reasoning or self._calls):
            return _NOTHING
        calls, self._calls = tuple(self._calls), []
        return TextPiece(text, reasoning, calls)

    def _read(self, text: str) -> None:
        while text and not self.stopped:
            shown, target, rest = self._scan.feed(text)
            if self._state == CALL:
                text = self._write_call(shown, target, rest)
                continue
            self._show(self._state, shown)
            if target is not None and not self.stopped:
                self._enter(target)
            text = rest

    def _show(self, state: str, text: str) -> None:
        if not text:
            return
        if state == TEXT:
            self._content.add(text)
        elif state == REASONING:
            self._reasoning.add(text)

    def _enter(self, state: str) -> None:
        """A marker leads to `state`; a run of text or reasoning goes on after a call that was none."""
        if state == CALL:
            self._origin = self._state
        elif state != self._state:
            self._leave(self._state, state)
        self._go(state)

    def _leave(self, state: str, following: str) -> None:
        if state == REASONING:
            self._reasoning.end_run()
        if REASONING in (state, following):
            self._content.end_run()

    def _go(self, state: str) -> None:
        self._state = state
        self._scan.enter(state)

    def _write_call(self, text: str, target: str | None, rest: str) -> str:
        """More of a call, and its end if there is a target; the text that is to be read after it."""
        self._body.append(text)
        self._body_length += len(text)
        if self._body_length > MAX_CALL_LENGTH:
            after = self._end + rest if target is not None else self._scan.flush()
            body = self._take_body()
            self._show_call(body[:MAX_CALL_LENGTH])
            return body[MAX_CALL_LENGTH:] + after
        if target is not None:
            self._end_call(self._take_body(), target)
        return rest

    def _take_body(self) -> str:
        body = "".join(self._body)
        self._body, self._body_length = [], 0
        return body

    def _end_call(self, body: str, target: str) -> None:
        calls = self._parser(body, self._chat.tools) if self._parser is not None else None
        if calls is None:
            self._show_call(body + self._end, target)
            return
        self._reasoning.end_run()
        self._content.end_run()
        self._add_calls(calls)
        self._go(target)

    def _show_call(self, body: str, target: str = TEXT) -> None:
        """What looked like a call goes on what it began in."""
        kind = REASONING if self._origin == REASONING else TEXT
        self._show(kind, self._start + body)
        self._go(REASONING if kind == REASONING else target)

    def _add_calls(self, calls: Sequence[ToolCall]) -> None:
        most = self._chat.max_calls
        if most is not None:
            calls = calls[: most - self._made]
        self._calls += calls
        self._made += len(calls)
        if most is not None and self._made >= most:
            self._content.finish()
            self._has_all_calls = True

    def _finish_state(self, held: str) -> None:
        if self._state != CALL:
            self._show(self._state, held)
            return
        body = self._take_body() + held
        if self._end:
            self._show_call(body)
        else:
            self._end_call(body, TEXT)
