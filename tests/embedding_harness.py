"""A real embedding engine on a real lane, and short ways to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mlxd.engines.embedding_engine import EmbeddingEngine
from mlxd.engines.embedding_types import EmbeddingOutput, EmbeddingRequest, EncoderInput
from mlxd.engines.encoder_tokenizer import EncoderTokenizer
from mlxd.engines.errors import EngineClosed
from mlxd.engines.lanes import LanePool
from mlxd.engines.types import EngineConfig

CORE_OPTIONS = ("memory", "prefill_eviction_callback", "on_dead", "on_freed", "on_refused", "step_lock")
_ids = count(1)


@asynccontextmanager
async def embedder(path: Path, lanes: LanePool, **options: Any) -> AsyncIterator[EmbeddingEngine]:
    """An engine that is loaded, and closed at the end."""
    core = {name: options.pop(name) for name in CORE_OPTIONS if name in options}
    engine = EmbeddingEngine(EngineConfig(path.name, path, **{"context_length": 512, **options}), lanes, **core)
    await engine.load()
    try:
        yield engine
    finally:
        assert await engine.close(EngineClosed("the test is over"), 20)


def tokenizer_of(engine: EmbeddingEngine) -> EncoderTokenizer:
    assert isinstance(engine.tokenizer, EncoderTokenizer)
    return engine.tokenizer


def inputs(engine: EmbeddingEngine, texts: Sequence[str]) -> tuple[EncoderInput, ...]:
    return tuple(tokenizer_of(engine).inputs(texts, truncate=True))


def request(engine: EmbeddingEngine, texts: Sequence[str], request_id: str | None = None) -> EmbeddingRequest:
    return EmbeddingRequest(request_id or f"e{next(_ids)}", inputs(engine, texts))


async def ask(engine: EmbeddingEngine, wanted: EmbeddingRequest) -> EmbeddingOutput:
    async with engine.embed(wanted) as embedding:
        return await embedding.output()


async def embed(engine: EmbeddingEngine, texts: Sequence[str]) -> np.ndarray:
    """(texts, dimensions)"""
    return matrix(await ask(engine, request(engine, texts)))


def matrix(output: EmbeddingOutput) -> np.ndarray:
    assert not output.cancelled
    return np.array([np.frombuffer(vector or b"", "<f4") for vector in output.vectors])
