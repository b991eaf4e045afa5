"""The face that every kind of engine shows to the registry and the facades."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mlxd.engines.embedding import Embedding
from mlxd.engines.embedding_types import EmbeddingRequest
from mlxd.engines.errors import EngineDead
from mlxd.engines.generation import Generation
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import (
    EngineConfig,
    EngineLimits,
    EngineStats,
    LoadProgress,
    ModelInfo,
    Request,
    RequestStatus,
)


class Engine(Protocol):
    """One model, loaded or about to be; see EngineBase for what each method promises.

    Of `generate` and `embed` it can one, and raises WrongModelKind from the other.
    """

    @property
    def config(self) -> EngineConfig: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def load(self, on_progress: Callable[[LoadProgress], None] = ...) -> ModelInfo: ...

    def cancel_load(self) -> None: ...

    def generate(self, request: Request) -> Generation: ...

    def embed(self, request: EmbeddingRequest) -> Embedding: ...

    def cancel(self, request_id: str) -> bool: ...

    def abort_all(self, error: Exception) -> int: ...

    def retune(self, limits: EngineLimits) -> None: ...

    async def trim_prefix_cache(self, max_bytes: int) -> None: ...

    def stats(self) -> EngineStats: ...

    def requests(self) -> tuple[RequestStatus, ...]: ...

    def lose(self, dead: EngineDead) -> None: ...

    async def close(self, error: Exception, timeout: float) -> bool: ...
