"""Token ids in arrays, and how much of them is common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Prompt = Sequence[int] | Tokens


def token_array(tokens: Prompt) -> Tokens:
    """Token ids as they are compared; an array of them as it is."""
    return np.asarray(tokens, dtype=np.int32)


def common_length(first: Tokens, second: Tokens) -> int:
    """How many tokens two sequences share from their start."""
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    return int(differs.argmax()) if differs.any() else length


def usable_length(held: Tokens, prompt: Tokens, *, trimmable: bool) -> int:
    """How many tokens of `prompt`, its last one excluded, the cache after `held` can give."""
    shared = common_length(held, prompt[:-1])
    return shared if trimmable or shared == len(held) else 0
