"""Tokens to text for one sequence, with stop strings matched on the decoded text."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_lm.generate import TextStateMachine

from mlxd.engines.backend import TextPiece
from mlxd.engines.tokenizer import Detokenizer


class StopText:
    """Finds the first stop string in text that comes in pieces; a possible beginning of one is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        machine = TextStateMachine({"normal": [(text, None) for text in stop]})
        self._state = machine.make_state()
        self.found = False

    def feed(self, text: str) -> str:
        """The text that may be shown now: never part of a stop string, nor anything after one."""
        self._state, shown, name = TextStateMachine.step(self._state, text)
        self.found = name is None
        return str(shown)

    def flush(self) -> str:
        """What was held back, for a sequence that ended without a stop string."""
        self._state, held, _ = TextStateMachine.flush(self._state)
        return str(held)


class StoppableText:
    """One sequence's text. `stopped` turns True with the token that completes a stop string."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = (), primer: int | None = None) -> None:
        self._detokenizer = detokenizer
        self._stop = StopText(stop) if stop else None
        if primer is not None:
            # A detokenizer drops the first space of its text; after the prompt's last token it is not first.
            detokenizer.add_token(primer)
            _ = detokenizer.last_segment

    @property
    def stopped(self) -> bool:
        return self._stop is not None and self._stop.found

    def push(self, token: int) -> TextPiece:
        """Decode one token; the text that became safe to show."""
        self._detokenizer.add_token(token)
        return TextPiece(self._filter(self._detokenizer.last_segment))

    def finish(self) -> TextPiece:
        """The text left at the end of the sequence."""
        self._detokenizer.finalize()
        text = self._filter(self._detokenizer.last_segment)
        if self._stop is None or self._stop.found:
            return TextPiece(text)
        return TextPiece(text + self._stop.flush())

    def _filter(self, text: str) -> str:
        return self._stop.feed(text) if self._stop is not None else text
