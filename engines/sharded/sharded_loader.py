"""Loads one rank's part of a model, with mlx-lm's own ways to split it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.loader import describe
from mlxd.engines.sharded.rendezvous import joining
from mlxd.engines.shards import Shards


def join(shards: Shards, rank: int, addresses: Sequence[str]) -> Any:
    """MLX's group of all ranks; a process joins one in its life. Raises LoadError."""
    try:
        with joining(shards, rank, addresses):
            group = mx.distributed.init(strict=True, backend=shards.backend)
    except (OSError, RuntimeError) as error:
        message = f"{shards.title(rank)} cannot join the others by {shards.backend}: {error}"
        raise LoadError(LoadFailure.UNSUPPORTED, message) from error
    if group.size() != shards.size:
        message = f"{shards.title(rank)} has joined {group.size()} ranks and not {shards.size}"
        raise LoadError(LoadFailure.INTERNAL, message)
    return group


def split(model: Any, config: dict[str, Any], shards: Shards, group: Any, path: Path) -> None:
    """Leave only this rank's part of a model whose weights are not read yet. Raises LoadError."""
    try:
        if shards.sharding == "pipeline":
            _layers(model).pipeline(group)
        else:
            _check_heads(config, shards.size)
            _whole(model).shard(group)
    except (ValueError, TypeError, AttributeError) as error:
        message = f"{path.name} cannot be split over {shards.size} hosts as {shards.sharding}: {describe(error)}"
        raise LoadError(LoadFailure.UNSUPPORTED, message) from error


def _whole(model: Any) -> Any:
    if not hasattr(model, "shard"):
        raise ValueError('mlx-lm has no tensor parallelism for it; sharding = "pipeline" may work')
    return model


def _layers(model: Any) -> Any:
    if not hasattr(getattr(model, "model", None), "pipeline"):
        raise ValueError('mlx-lm has no pipeline for it; sharding = "tensor" may work')
    return model.model


def _check_heads(config: dict[str, Any], size: int) -> None:
    """mlx-lm divides heads without a look at what is left over."""
    text = config.get("text_config") or config
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = text.get(name)
        if isinstance(heads, int) and heads % size:
            raise ValueError(f"its {heads} {name} do not divide by {size}")
