"""Measures the working memory of one engine's step, in a process that has one counter for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx

from mlxd.engines.crowd import Crowd


@dataclass(slots=True)
class Peak:
    """Bytes above those that were active at the beginning: at the height, None when others took part, and what of it is
    still there at the end.
    """

    nbytes: int | None = None
    kept: int = 0


class PeakMeter:
    """Reads MLX's peak counter over a block. Used on the engine's lane, within `Crowd.entered`."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd

    @contextmanager
    def measured(self) -> Iterator[Peak]:
        """The height of what the block takes, known once it is over."""
        peak = Peak()
        mark = self._crowd.alone_since()
        if mark is None:
            yield peak
            return
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        yield peak
        if self._crowd.still_alone(mark):
            peak.nbytes = max(0, mx.get_peak_memory() - before)
            peak.kept = mx.get_active_memory() - before
