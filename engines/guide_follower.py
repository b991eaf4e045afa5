"""Where one answer stands in its guide, worked out from its tokens alone. Touches no MLX array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from llguidance import LLMatcher

from mlxd.engines.errors import GuideError
from mlxd.engines.guidance import plain_reason

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model marks its reasoning: the start as token ids, and the end as text, however it is spread over tokens.

    `text_of` gives a token's text; `is_open` when the prompt begins a block of reasoning and does not end it.
    """

    start: tuple[int, ...]
    end: bytes
    text_of: Callable[[int], bytes]
    is_open: bool = False


class ReasoningBounds:
    """Finds the answer behind the reasoning that may come first. Without `reasoning` it begins at once."""

    def __init__(self, reasoning: Reasoning | None) -> None:
        self._reasoning = reasoning
        self._end: int | None = None
        self._searched = 0
        self._tail = b""

    def answer_at(self, seen: list[int]) -> int | None:
        """Index of the answer's first token; None while the model reasons."""
        reasoning = self._reasoning
        if reasoning is None:
            return 0
        if reasoning.is_open:
            return self._after_end(seen, reasoning, 0)
        if not self._begins_with(seen, reasoning.start):
            return 0
        return self._after_end(seen, reasoning, len(reasoning.start))

    def marker_token(self, seen: list[int]) -> int | None:
        """The token that goes on with a start marker of which a part is written; None outside of one."""
        reasoning = self._reasoning
        if reasoning is None or reasoning.is_open or len(seen) >= len(reasoning.start):
            return None
        return reasoning.start[len(seen)] if self._begins_with(seen, reasoning.start) else None

    def first_token(self) -> int | None:
        """The token with which the model may begin to reason instead of answering; None if it may not."""
        reasoning = self._reasoning
        return reasoning.start[0] if reasoning is not None and not reasoning.is_open else None

    def forget(self, length: int) -> None:
        """Only so many tokens are still what they were."""
        if length < self._searched:
            self._end, self._searched, self._tail = None, 0, b""

    def _after_end(self, seen: list[int], reasoning: Reasoning, start: int) -> int | None:
        for at in range(max(start, self._searched), len(seen) if self._end is None else 0):
            self._searched = at + 1
            text = self._tail + reasoning.text_of(seen[at])
            if reasoning.end in text:
                self._end = at + 1
                break
            self._tail = text[-len(reasoning.end) :]
        return self._end

    @staticmethod
    def _begins_with(seen: list[int], marker: tuple[int, ...]) -> bool:
        return bool(seen) and tuple(seen[: len(marker)]) == marker[: len(seen)]


class GuideFollower:
    """Says which tokens may come next. One row's, used on one thread.

    The guide holds from the answer's first token on. When the prompt left a block of reasoning open, the answer
    begins behind its end. When it did not, the model may begin one as the first thing it does, or answer at once.
    No end token is allowed before the answer is complete, and nothing else when it can only end.
    """

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, end_tokens: frozenset[int], reasoning: Reasoning | None = None
    ) -> None:
        self._matcher = matcher
        self._words = np.zeros((vocab_size + 31) // 32, np.int32)
        self._vocab_size = vocab_size
        self._end_tokens = end_tokens
        self._bounds = ReasoningBounds(reasoning)
        self._seen: list[int] = []
        self._answer_at = self._bounds.answer_at(self._seen)
        self._consumed = 0
        self._ended = False

    def follow(self, generated: Sequence[int]) -> None:
        """Take the tokens generated so far, all of them; they may differ from those of the last call.

        Raises GuideError when the guide does not allow them.
        """
        tokens = list(generated)
        if tokens[: len(self._seen)] != self._seen:
            self._go_back(_common_length(tokens, self._seen))
        self._seen = tokens
        self._answer_at = self._bounds.answer_at(tokens)
        if self._answer_at is not None:
            self._consume(tokens[self._answer_at + self._consumed :])

    def allowed(self) -> Mask:
        """For each token id of the tokenizer, whether it may come next. Raises GuideError."""
        marker = self._bounds.marker_token(self._seen)
        if marker is not None:
            return self._only((marker,))
        if self._answer_at is None:
            return ~self._only(self._end_tokens)
        if self._ended or (self._matcher.is_stopped() and not self._matcher.is_error()):
            return self._only(self._end_tokens)
        mask = self._compute_mask()
        first = None if self._seen else self._bounds.first_token()
        if first is not None:
            mask[first] = True
        return mask

    def _consume(self, tokens: list[int]) -> None:
        """Take new tokens of the answer. An end token is the last one that counts."""
        text = list(takewhile(lambda token: token not in self._end_tokens, tokens))
        self._ended = len(text) < len(tokens)
        taken = self._matcher.try_consume_tokens(text) if text else 0
        self._consumed += taken
        self._raise_error()
        if taken < len(text):
            raise GuideError(f"token {text[taken]} is not allowed after {self._consumed} tokens of the answer")

    def _go_back(self, length: int) -> None:
        kept = min(self._consumed, max(0, length - (self._answer_at or 0)))
        if not self._matcher.rollback(self._consumed - kept):
            raise GuideError(plain_reason(self._matcher.get_error()))
        self._consumed = kept
        self._bounds.forget(length)

    def _compute_mask(self) -> Mask:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        # in an error state llguidance answers with the end tokens
        self._raise_error()
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        mask: Mask = bits[: self._vocab_size].view(np.bool_)
        if not mask.any():
            raise GuideError("no token of this model can go on with it")
        return mask

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GuideError(plain_reason(self._matcher.get_error()))

    def _only(self, tokens: Iterable[int]) -> Mask:
        mask = np.zeros(self._vocab_size, np.bool_)
        mask[[token for token in tokens if token < self._vocab_size]] = True
        return mask


def _common_length(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
