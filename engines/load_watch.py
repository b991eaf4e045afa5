"""What a load, and the model that comes of it, look at on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlxd.engines.crowd import Crowd
from mlxd.engines.image_threads import ImageThreads
from mlxd.engines.shards import Joining, RankLost
from mlxd.engines.turns import Turns
from mlxd.engines.types import LoadProgress


@dataclass(frozen=True, slots=True)
class LoadWatch:
    """`progress` is told of the bytes that are there, `cancelled` is asked between pieces, and may take its time.
    `crowd` tells who else computes, `turns` who else has work, None where steps wait for nobody. Image processors run
    on `images`. `others` is told, on any thread, how parts of the model on other hosts fare.
    """

    progress: Callable[[LoadProgress], None]
    cancelled: Callable[[], bool]
    crowd: Crowd
    turns: Turns | None
    images: ImageThreads
    others: Callable[[Joining | RankLost], None]
