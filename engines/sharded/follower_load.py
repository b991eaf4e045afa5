"""Loads the part of a model that a rank other than 0 has."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable

import mlx.core as mx
import msgspec

from mlxd.engines.loader import build_model, evaluate_all, vocabulary_size
from mlxd.engines.sharded.agreed_model import AgreedModel
from mlxd.engines.sharded.mirror import Mirror
from mlxd.engines.sharded.orders import Prepare
from mlxd.engines.sharded.reports import Loaded, Progress
from mlxd.engines.sharded.sharded_loader import join, split
from mlxd.engines.types import LoadProgress


def load(prepare: Prepare, addresses: list[str], send: Callable[[msgspec.Struct], None]) -> Mirror:
    """Join the group and load, on the thread that will compute. Raises LoadError."""
    config, shards = prepare.config, prepare.shards
    # nothing else ends a rank that joins: MLX holds the interpreter, and may wait for ever
    signal.alarm(math.ceil(shards.start_patience))
    group = join(shards, prepare.rank, addresses)
    signal.alarm(0)
    model, description = build_model(config.path)
    split(model, description, shards, group, config.path)
    mx.eval(mx.random.state)

    def progress(so_far: LoadProgress) -> None:
        send(Progress(so_far.bytes_done, so_far.bytes_total))

    send(Loaded(evaluate_all([model], config.path, progress, lambda: False)))
    stream = mx.default_stream(mx.default_device())
    return Mirror(AgreedModel(model, group), vocabulary_size(description, model), config.prefill_chunk, stream)
