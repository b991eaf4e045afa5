"""Refuses prompts that are far too long before all of them is made into tokens."""

from __future__ import annotations

from mlxd.engines.errors import ContextLengthExceeded
from mlxd.engines.tokenizer import Tokenizer

# A tokeniser takes some 250 bytes of memory for each character of one call: what is longer goes in pieces.
LONG_TEXT = 1_000_000
# Tokens that a piece may have more than its part of the whole: special ones, and words that are cut.
_SPARE = 16


def refuse_too_long(tokenizer: Tokenizer, text: str, context_length: int) -> None:
    """Raise ContextLengthExceeded when a long text has more tokens than the context; it names those counted so far."""
    if len(text) <= LONG_TEXT:
        return
    count = 0
    for start in range(0, len(text), LONG_TEXT):
        count += max(0, len(tokenizer.encode(text[start : start + LONG_TEXT])) - _SPARE)
        if count > context_length:
            raise ContextLengthExceeded(count, 1, context_length)
