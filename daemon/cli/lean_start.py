"""What makes a start quick: no look of the garbage collector at what stays, and no library that only terminals need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mlxd.engines.lasting_imports import lasting_imports


@contextmanager
def lean_start() -> Iterator[None]:
    """For the imports of a long-running process. structlog imports rich where it is installed: the log is plain."""
    with lasting_imports():
        with _without("rich"):
            importlib.import_module("structlog")
        yield


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
