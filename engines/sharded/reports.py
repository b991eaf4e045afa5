"""What the other ranks tell rank 0."""

from __future__ import annotations

import msgspec


class Prepared(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The rank has its model folder. What must be the same on all of them, the address at which it listens, and the
    bytes that it may take on its host, None where nobody measures.
    """

    same: dict[str, str]
    address: str
    room: int | None = None


class Reached(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """The rank has reached the next one, was reached by the one before it, and has left its place to MLX."""


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
    """The rank is alive; `room` as in Prepared."""

    room: int | None = None


Report = Prepared | Reached | Failed | Progress | Loaded | Beat
