"""Tries a fresh model with images of two sizes, which shows what they cost and how that grows."""

from __future__ import annotations

import time
from collections.abc import Callable

# Pixels on a side. The large one is left out where it would take longer than so many seconds, to judge by the small.
SMALL, LARGE = 64, 448
PATIENCE = 1.0


def try_images(encode: Callable[[int], object]) -> None:
    """Call `encode` with sides of images. Raises what it raises."""
    # the first run of a model also compiles, or fills caches
    encode(SMALL)
    started = time.perf_counter()
    encode(SMALL)
    if (time.perf_counter() - started) * (LARGE / SMALL) ** 2 < PATIENCE:
        encode(LARGE)
