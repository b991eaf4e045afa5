"""From what configuration and disk say of a model to what the planner knows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mlxd.registry.residency import Resident
from mlxd.registry.spec import ModelSpec


def resident_of(spec: ModelSpec, load_need: Callable[[ModelSpec], int]) -> Resident:
    """A model that is not in memory. `load_need` gives the bytes that a load must find free."""
    floor = load_need(spec) - spec.weight_bytes
    return Resident(spec.name, spec.weight_bytes, floor, spec.load_key, pinned=spec.pinned, ttl=spec.ttl)


def as_set(configured: Resident, before: ModelSpec, known: Resident | None) -> Resident:
    """A model as it is configured now, with the pin and the ttl that it has if its configuration left them alone:
    an operator may have changed them since.
    """
    if known is None:
        return configured
    pinned = known.pinned if configured.pinned == before.pinned else configured.pinned
    return replace(configured, pinned=pinned, ttl=known.ttl if configured.ttl == before.ttl else configured.ttl)
