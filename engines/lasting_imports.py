"""Spares what is imported for good the looks of the garbage collector: every full one holds all threads."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """For the imports of a long-running process: the collector stands still meanwhile, and never looks at them later.

    Nothing that is there at the end and is to be collected may be part of a circle: models are loaded afterwards.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
