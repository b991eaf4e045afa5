"""Who holds the footprint: the ledger's parts beside the measured whole."""

from __future__ import annotations

from dataclasses import dataclass

from mlxd.memory.footprint import Footprint


@dataclass(frozen=True, slots=True)
class Parts:
    """The footprint taken apart, in bytes; the six fields sum to it exactly.

    `unexplained` is the remainder. It is negative when the parts claim more than the kernel counts: weights
    that are swapped out, are not evaluated yet, or lie in a GPU memory outside the process.
    """

    weights: int
    kv: int
    prefix_cache: int
    mlx_cache: int
    base: int
    unexplained: int


def parts(footprint: Footprint, base_bytes: int, weights: int, kv: int, prefix_cache: int) -> Parts:
    """Take `footprint` apart; `base_bytes` is the footprint of the idle daemon before its first load."""
    explained = base_bytes + weights + kv + prefix_cache + footprint.mlx_cache
    return Parts(
        weights=weights,
        kv=kv,
        prefix_cache=prefix_cache,
        mlx_cache=footprint.mlx_cache,
        base=base_bytes,
        unexplained=footprint.bytes - explained,
    )
