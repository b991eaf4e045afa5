"""What the other ranks tell rank 0."""

from __future__ import annotations

import msgspec


class HostMemory(msgspec.Struct, array_like=True, frozen=True):
    """Bytes: what a rank uses, what it may take beyond that (None where nobody measures), and MLX's counters."""

    footprint: int = 0
    room: int | None = None
    mlx_active: int = 0
    mlx_cache: int = 0
    mlx_peak: int = 0


class Prepared(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The rank has its model folder. What must be the same on all of them, the address at which it will listen, and its
    memory.
    """

    same: dict[str, str]
    address: str
    memory: HostMemory


class Failed(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """The rank ends; `reason` is a LoadFailure's."""

    reason: str
    message: str


class Progress(msgspec.Struct, array_like=True, tag=3, frozen=True):
    done: int
    total: int


class Loaded(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Its part of the model is in memory."""

    weight_bytes: int


class Beat(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The rank is alive."""

    memory: HostMemory


Report = Prepared | Failed | Progress | Loaded | Beat
