"""The right to use a ready engine; it lasts as long as one request."""

from __future__ import annotations

from dataclasses import dataclass

from mlxd.engines.engine import Engine
from mlxd.registry.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Lease:
    """While it is held the model is not evicted. `queue_s` is how long it was waited for, `load_s` the load in it."""

    engine: Engine
    spec: ModelSpec
    generation: int
    queue_s: float
    load_s: float
