"""Token ids in arrays, and how much of them is common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from mlxd.engines.imported_later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = later("numpy")


Tokens: TypeAlias = "npt.NDArray[np.int32]"
Prompt: TypeAlias = "Sequence[int] | Tokens"


def token_array(tokens: Prompt) -> Tokens:
    """Token ids as they are compared; an array of them as it is."""
    return np.asarray(tokens, dtype=np.int32)


def common_length(first: Tokens, second: Tokens) -> int:
    """How many tokens two sequences share from their start."""
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    return int(differs.argmax()) if differs.any() else length


def usable_length(held: Tokens, prompt: Tokens, *, trimmable: bool) -> int:
    """How many tokens of `prompt`, its last one excluded, the cache after `held` can give; all of an image or none."""
    shared = common_length(held, prompt[:-1])
    whole = image_boundary(prompt, shared)
    if trimmable:
        return whole
    return shared if whole == shared == len(held) else 0


def image_boundary(prompt: Tokens, length: int) -> int:
    """The largest cut of a prompt, up to `length`, that parts no image: its places have negative numbers, of which only
    the first is even.
    """
    inside = (prompt[: length + 1] < 0) & (prompt[: length + 1] & 1 == 1)
    if not inside[-1]:
        return length
    outside = np.flatnonzero(~inside)
    return int(outside[-1]) if len(outside) else 0
