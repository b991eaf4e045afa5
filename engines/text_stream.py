"""The text of one sequence: plain, or a chat's answer taken apart."""

from __future__ import annotations

from mlxd.engines.answer_format import CALL, answer_edges
from mlxd.engines.answer_text import AnswerText
from mlxd.engines.backend import TextPiece, TextStream
from mlxd.engines.stop_text import StopText, stop_text
from mlxd.engines.token_text import TokenText
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import ChatFormat, Request


class StoppableText:
    """Plain text. `stopped` turns True with the token that completes a stop string."""

    def __init__(self, tokens: TokenText, stop: StopText | None = None) -> None:
        self._tokens = tokens
        self._stop = stop

    @property
    def stopped(self) -> bool:
        return self._stop is not None and self._stop.found

    @property
    def stop(self) -> str | None:
        return None if self._stop is None else self._stop.matched

    def push(self, token: int) -> TextPiece:
        """Decode one token; the text that became safe to show."""
        text = self._tokens.push(token)
        if self._stop is not None:
            self._stop.count_token()
            text = self._stop.feed(text)
        return TextPiece(text)

    def finish(self) -> TextPiece:
        """The text left at the end of the sequence."""
        text = self._tokens.finish()
        if self._stop is not None:
            text = self._stop.feed(text) + self._stop.flush()
        return TextPiece(text)


def text_stream(tokenizer: Tokenizer, request: Request) -> TextStream:
    """A fresh text stream for one request. A chat of a model without markers is plain text too."""
    tokens, stop = TokenText(tokenizer, request), stop_text(request.sampling)
    if request.chat is not None:
        answer = _answer_text(tokenizer, request, request.chat, tokens, stop)
        if answer is not None:
            return answer
    return StoppableText(tokens, stop)


def _answer_text(
    tokenizer: Tokenizer, request: Request, chat: ChatFormat, tokens: TokenText, stop: StopText | None
) -> AnswerText | None:
    edges = answer_edges(tokenizer, calls=bool(chat.tools))
    if not edges:
        return None
    return AnswerText(
        tokens,
        stop,
        edges,
        state=tokenizer.answer_state(request.prompt, continues=request.continues_text),
        markers=tokenizer.tool_markers if CALL in edges else None,
        parser=tokenizer.call_parser if chat.tools else None,
        chat=chat,
    )
