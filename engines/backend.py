"""What an engine needs of the machinery below it. The MLX one is imported only when a lane first needs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, cast

from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import EngineConfig, LoadProgress, ModelInfo, Request


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One decoded token of row `uid`; `is_end` for an end token, `is_last` when the row has left the batch."""

    uid: int
    token: int
    is_end: bool = False
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class RunnerStep:
    """What one step did: one decoded token for each row whose prompt is complete."""

    tokens: tuple[TokenEvent, ...] = ()


class TextStream(Protocol):
    """One sequence's text: tokens in, text out, stop strings and incomplete characters held back."""

    @property
    def stopped(self) -> bool:
        """True once a stop string was seen; nothing after it is ever given out."""

    def push(self, token: int) -> str:
        """Decode one token; the text that became safe to show."""

    def finish(self) -> str:
        """The text left at the end of the sequence."""


class ModelRunner(Protocol):
    """A loaded model and its batch. Every call happens on the engine's lane."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache that the batch holds now."""

    def insert(self, request: Request, max_tokens: int) -> int:
        """Add a row and return its uid."""

    def text_stream(self, request: Request) -> TextStream:
        """A fresh text stream for one request."""

    def remove(self, uids: Iterable[int]) -> None:
        """Drop rows with their KV; unknown uids are ignored."""

    def step(self) -> RunnerStep:
        """Decode one token for each running row, then prefill one chunk."""

    def rebuild(self) -> None:
        """Drop every row and start with an empty batch, after a step that raised."""

    def close(self) -> None:
        """Drop the batch and the model."""


class Backend(Protocol):
    """The MLX side of a lane. Every call happens on the lane's own thread."""

    def lane_scope(self) -> AbstractContextManager[None]:
        """Hold this thread's stream; leaving the scope is the thread's last use of the backend."""

    def load(
        self, config: EngineConfig, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]
    ) -> ModelRunner:
        """Load and evaluate a model. Raises LoadError."""

    def reclaim(self) -> None:
        """Give freed memory back to the system."""


BackendFactory = Callable[[], Backend]


def mlx_backend() -> Backend:
    """Import MLX and mlx-lm (seconds) and return the backend on them."""
    module = importlib.import_module("mlxd.engines.mlx_backend")
    return cast(Backend, module.MlxBackend())
