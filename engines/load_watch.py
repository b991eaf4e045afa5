"""What a load, and the model that comes of it, look at on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlxd.engines.crowd import Crowd
from mlxd.engines.image_threads import ImageThreads
from mlxd.engines.shards import RankLost
from mlxd.engines.turns import Turns
from mlxd.engines.types import LoadProgress


@dataclass(frozen=True, slots=True)
class LoadWatch:
    """`progress` is told of the bytes that are there, `cancelled` is asked between pieces, and may take its time.
    `crowd` tells who else computes, `turns` who else has work, None where steps wait for nobody. Image processors run
    on `images`. `lost` is told, on any thread, when a part of the model on another host is gone.
    """

    progress: Callable[[LoadProgress], None]
    cancelled: Callable[[], bool]
    crowd: Crowd
    turns: Turns | None
    images: ImageThreads
    lost: Callable[[RankLost], None]
