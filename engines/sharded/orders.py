"""What rank 0 tells the other ranks, in the order in which it does the same itself."""

from __future__ import annotations

import msgspec

from mlxd.engines.shards import Shards
from mlxd.engines.types import EngineConfig


class Prepare(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The first message; answered by Prepared or Failed."""

    rank: int
    config: EngineConfig
    shards: Shards


class Reach(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Connect to the next of these addresses, which are those of all ranks; answered by Reached or Failed."""

    addresses: list[str]


class Join(msgspec.Struct, array_like=True, tag=13, frozen=True):
    """All reach each other: join the group and load; answered by Progress and then Loaded, or Failed."""


class Look(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Process so many tokens on caches of their own, which are dropped."""

    tokens: int


class Insert(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Add row `uid` to a group, which is made if it is not there. Its first `cached` tokens are those of the kept cache
    `prefix`, cut back by `cut` tokens.
    """

    group: int
    uid: int
    prompt: bytes
    cached: int = 0
    cuts: list[int] = []
    prefix: int | None = None
    cut: int = 0


class Step(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Run a group once; with a `chunk` its prompts too."""

    group: int
    chunk: int | None = None


class Ended(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """Rows that the last step has ended; their caches may be kept until a Let."""

    group: int
    uids: list[int]


class Keep(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """Keep the cache of a row, or of one that has ended, under this key."""

    uid: int
    key: int


class Forget(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """Drop a kept cache."""

    key: int


class Remove(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """Drop rows."""

    group: int
    uids: list[int]


class Settle(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """Give the memory of removed rows back."""

    group: int


class Let(msgspec.Struct, array_like=True, tag=14, frozen=True):
    """Of what has ended all is kept that will be."""


class Ping(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """Rank 0 is there."""


class Leave(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """End."""


Order = Prepare | Reach | Join | Look | Insert | Step | Ended | Keep | Forget | Remove | Settle | Let | Ping | Leave
