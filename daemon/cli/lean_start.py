"""What makes a start quick: no look of the garbage collector at what stays, and no library that only terminals need."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lean_start() -> Iterator[None]:
    """For the imports of a long-running process.

    The collector would look through all that is imported, again and again. structlog imports rich where it is
    installed, for tracebacks in colour: the log's are plain.
    """
    gc.disable()
    with _without("rich"):
        importlib.import_module("structlog")
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Have a module count as not installed, unless it is imported already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
