"""What configuration and disk say about one model, before it is loaded."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from mlxd.engines.shards import Shards


class ModelKind(enum.StrEnum):
    """What a model takes in and gives out."""

    TEXT = "text"
    VISION = "vision"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One known model. Bytes and tokens; 0 means unknown.

    `ttl` is seconds of idleness until unload, None for never. `problem` says why the folder cannot be served
    as it is (no weights, a corrupt header); the model is still listed and fails with it when asked for.
    `adapter` is the folder of a LoRA adapter over the model in `path`, `draft` that of a model that proposes tokens
    to it; both have their part in the bytes. `load_key` changes exactly when a model in memory would have to be loaded
    again. `takes_images` for a vision model that the installed packages can give images to. A model with `shards` is
    spread over hosts: its bytes are this machine's part.
    """

    name: str
    path: Path
    kind: ModelKind = ModelKind.TEXT
    aliases: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    pinned: bool = False
    ttl: float | None = None
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    context_length: int = 0
    problem: str | None = None
    adapter: Path | None = None
    draft: Path | None = None
    load_key: str = ""
    takes_images: bool = False
    shards: Shards | None = None
