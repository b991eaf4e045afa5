"""The MLX backend of a lane: its stream, loading, and giving memory back."""

from __future__ import annotations

import gc
import importlib
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import mlx.core as mx
import structlog

from mlxd.engines.allocator import Allocator
from mlxd.engines.backend import EncoderRunner, ModelRunner
from mlxd.engines.embedding_runner import EmbeddingRunner
from mlxd.engines.encoder_loader import load_encoder
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.first_look import first_look
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.loader import LoadedText, describe, load_text_model
from mlxd.engines.mlx_limits import apply_limits
from mlxd.engines.model_identity import model_identity
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.prefix_folder import PrefixFolder
from mlxd.engines.runner_base import Measures
from mlxd.engines.speculative_runner import SpeculativeRunner
from mlxd.engines.text_runner import TextRunner
from mlxd.engines.types import EngineConfig

log = structlog.stdlib.get_logger(__name__)


class MlxBackend:
    """One lane's view of MLX. Made, used and left on that lane's thread.

    `prefix_folder` is where models keep prompt prefixes beyond their unload. `ceiling` gives the bytes that the process
    may use, None for MLX's own limits.
    """

    def __init__(
        self, prefix_folder: PrefixFolder | None = None, ceiling: Callable[[], int | None] = lambda: None
    ) -> None:
        self._prefix_folder = prefix_folder
        self._ceiling = ceiling
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
            _finish_queued()
            mx.clear_streams()

    @property
    def shares_processor(self) -> bool:
        return mx.default_device().type == mx.DeviceType.cpu

    def load(self, config: EngineConfig, watch: LoadWatch) -> ModelRunner:
        """Load a text model, one that takes images too, or a part of one. Raises LoadError."""
        self._limit()
        if config.shards is not None:
            sharded = importlib.import_module("mlxd.engines.sharded.sharded_backend")
            return cast(ModelRunner, sharded.load(config, config.shards, watch, self._stream))
        # opened first: what is stored is listed while the weights are read
        disk = self._disk(config)
        try:
            if config.vision:
                return _load_vision(config, watch, self._stream, disk)
            loaded = load_text_model(config, watch.progress, watch.cancelled)
            meter = PeakMeter(watch.crowd)
            measures = Measures(self._stream, meter, first_look(loaded, config, meter))
            return _runner(loaded, config, measures, disk)
        except BaseException:
            if disk is not None:
                disk.close(0)
            raise

    def load_encoder(self, config: EngineConfig, watch: LoadWatch) -> EncoderRunner:
        """Load a model that makes embeddings or scores. Raises LoadError."""
        self._limit()
        return EmbeddingRunner(load_encoder(config, watch.progress, watch.cancelled), config, PeakMeter(watch.crowd))

    def _limit(self) -> None:
        """Each load sees to it: the first is early enough, and a changed ceiling is followed by the next."""
        ceiling = self._ceiling()
        if ceiling is not None:
            apply_limits(ceiling)

    def _disk(self, config: EngineConfig) -> PrefixDisk | None:
        if self._prefix_folder is None or not config.prefix_disk_bytes or not config.prefix_cache_bytes:
            return None
        try:
            beside = [model_identity(path) for path in (config.adapter, config.draft) if path is not None]
            identity = model_identity(config.path, " ".join(beside))
        except OSError as error:
            self._prefix_folder.report("identity", error)
            return None
        disk = PrefixDisk(self._prefix_folder, identity, config.prefix_disk_bytes)
        disk.open()
        return disk

    def reclaim(self) -> None:
        """Collect garbage, empty MLX's buffer cache and hand free pages back to the system."""
        gc.collect()
        _finish_queued()
        mx.clear_cache()
        self._allocator.trim()


def _finish_queued() -> None:
    """Wait for the stream. What is queued by now is of rows that are gone: only the log is told that it failed."""
    try:
        mx.synchronize()
    except RuntimeError as error:
        log.warning("mlx.queued_work_failed", reason=str(error))


def _load_vision(config: EngineConfig, watch: LoadWatch, stream: Any, disk: PrefixDisk | None) -> ModelRunner:
    """The vision extra is imported here, by the first model that needs it. Raises LoadError."""
    try:
        vision = importlib.import_module("mlxd.engines.vision_backend")
    except ImportError as error:
        message = f"images need mlx-vlm: pip install 'mlxd[vision]', and restart the daemon ({describe(error)})"
        raise LoadError(LoadFailure.UNSUPPORTED, f"{config.path.name}: {message}") from error
    return cast(ModelRunner, vision.load(config, watch, stream, disk))


def _runner(loaded: LoadedText, config: EngineConfig, measures: Measures, disk: PrefixDisk | None) -> ModelRunner:
    if loaded.draft is None:
        return TextRunner(loaded, config, measures, disk)
    runner = SpeculativeRunner(loaded, config, measures, disk)
    log.info("engine.not_batched", model=config.name, draft=str(config.draft), draft_tokens=config.draft_tokens)
    return runner


def _restore_file_limit() -> None:
    # Importing mlx-lm lowers the open-file limits; a server needs what is left of them.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
