"""Modules that are imported with their first use: an idle daemon is ready sooner, and smaller, without them."""

from __future__ import annotations

import importlib
from typing import Any


class _Later:
    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self._module), name)
        setattr(self, name, value)  # the next time it is found without coming here
        return value


def later(module: str) -> Any:
    """What stands for a module until something in it is asked for; safe on any thread."""
    return _Later(module)
