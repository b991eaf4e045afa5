"""The MLX backend of a lane: its stream, loading, and giving memory back."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mlx.core as mx

from mlxd.engines.allocator import Allocator
from mlxd.engines.loader import load_text_model
from mlxd.engines.text_runner import TextRunner
from mlxd.engines.types import EngineConfig, LoadProgress


class MlxBackend:
    """One lane's view of MLX. Made, used and left on that lane's thread."""

    def __init__(self) -> None:
        self._allocator = Allocator()
        _restore_file_limit()

    @contextmanager
    def lane_scope(self) -> Iterator[None]:
        """Make the thread's stream its default; at the end clear it, as the thread's last MLX call."""
        self._stream = mx.new_thread_local_stream(mx.default_device())
        try:
            with mx.stream(self._stream):
                yield
        finally:
            mx.synchronize()
            mx.clear_streams()

    def load(
        self, config: EngineConfig, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]
    ) -> TextRunner:
        """Load a text model. Raises LoadError."""
        model, tokenizer, info = load_text_model(config.path, progress, cancelled)
        return TextRunner(model, tokenizer, info, config, self._stream)

    def reclaim(self) -> None:
        """Collect garbage, empty MLX's buffer cache and hand free pages back to the system."""
        gc.collect()
        mx.synchronize()
        mx.clear_cache()
        self._allocator.trim()


def _restore_file_limit() -> None:
    # Importing mlx-lm lowers the open-file limits; a server needs what is left of them.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
