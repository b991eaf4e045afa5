"""A guide as a logits processor of one row: tokens that it does not allow get no probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any, cast

import mlx.core as mx
import numpy as np

from mlxd.engines.errors import GuideError
from mlxd.engines.guidance import guide_compiler
from mlxd.engines.guide_follower import GuideFollower, Mask, Reasoning
from mlxd.engines.tokenizer import Thought, Tokenizer
from mlxd.engines.types import Guide

# CPU seconds that one row's guide may take: at once, and for each token. All rows of a batch wait for each of them.
FREE_SECONDS = 1.0
SECONDS_PER_TOKEN = 0.02

_NEVER = -float("inf")


class GuideProcessor:
    """Called with a row's tokens `[prompt + generated]` and its logits `[1, vocab]`, once for each step.

    Reading the last token waits for it, so the step of a guided row cannot overlap the one before. What was
    consumed is worked out from the tokens given, so a row may also go back. Raises GuideError.
    """

    def __init__(self, follower: GuideFollower, prompt_length: int) -> None:
        self._follower = follower
        self._prompt_length = prompt_length
        self._seconds = 0.0
        self._steps = 0
        self._padded = np.zeros(0, np.bool_)

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        mask = self._allowed(cast(list[int], tokens[self._prompt_length :].tolist()))
        return mx.where(mx.array(self._fitted(mask, logits.shape[-1])), logits, _NEVER)

    def _allowed(self, generated: list[int]) -> Mask:
        started = thread_time()
        self._follower.follow(generated)
        mask = self._follower.allowed()
        self._seconds += thread_time() - started
        self._steps += 1
        if self._seconds > FREE_SECONDS + self._steps * SECONDS_PER_TOKEN:
            raise GuideError(f"it takes too long: {self._seconds:.1f} s for {self._steps} tokens")
        return mask

    def _fitted(self, mask: Mask, vocab_size: int) -> Mask:
        """The mask for a model whose vocabulary is of another size than its tokenizer's: ids beyond are not text."""
        if len(mask) >= vocab_size:
            return mask[:vocab_size]
        if len(self._padded) != vocab_size:
            self._padded = np.zeros(vocab_size, np.bool_)
        self._padded[: len(mask)] = mask
        return self._padded


def row_guide(guide: Guide, tokenizer: Tokenizer, prompt: Sequence[int], *, reasons: bool) -> GuideProcessor:
    """The logits processor of one row. With `reasons` the model may think before the guide holds.

    Quick for a guide from `check_guide`, which is compiled. Raises InvalidRequest.
    """
    compiler = guide_compiler(tokenizer)
    reasoning = _reasoning(tokenizer, prompt) if reasons else None
    follower = GuideFollower(compiler.matcher(guide), compiler.vocab_size, tokenizer.end_tokens, reasoning)
    return GuideProcessor(follower, len(prompt))


def _reasoning(tokenizer: Tokenizer, prompt: Sequence[int]) -> Reasoning | None:
    """What may come before the answer. None for a model that does not reason, and after a block that the template
    has closed itself, which is how templates write "do not think".

    Only a marker that is the prompt's last text counts: what users write is further in front.
    """
    end, thought = tokenizer.think_end, tokenizer.thought_at_end(prompt)
    if end is None or thought is Thought.CLOSED:
        return None
    tokens = tokenizer.once(_ThinkStart, _ThinkStart.of).tokens
    return Reasoning(tokens, end.encode(), tokenizer.token_bytes, is_open=thought is Thought.OPEN)


@dataclass(frozen=True, slots=True)
class _ThinkStart:
    """The marker before reasoning as token ids."""

    tokens: tuple[int, ...]

    @classmethod
    def of(cls, wrapper: Any) -> _ThinkStart:
        return cls(tuple(wrapper.think_start_tokens))
