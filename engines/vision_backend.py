"""The part of the MLX backend that needs the vision extra."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import structlog

from mlxd.engines.backend import ModelRunner
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.first_look import first_look
from mlxd.engines.image_trial import try_images
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.loader import is_out_of_memory
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.runner_base import Measures
from mlxd.engines.serial_vision_look import serial_look
from mlxd.engines.serial_vision_runner import SerialVisionRunner
from mlxd.engines.types import EngineConfig
from mlxd.engines.vision_encoder import EncoderWatch
from mlxd.engines.vision_loader import LoadedVision, load_vision_model
from mlxd.engines.vision_runner import VisionRunner

log = structlog.stdlib.get_logger(__name__)


def load(config: EngineConfig, watch: LoadWatch, stream: Any, disk: PrefixDisk | None) -> ModelRunner:
    """Load a vision model and try it. Raises LoadError."""
    meter = PeakMeter(watch.crowd)
    shares_processor = mx.default_device().type == mx.DeviceType.cpu
    lane = EncoderWatch(meter, watch.turns if shares_processor else None)
    loaded = load_vision_model(config, watch, lane)
    if not loaded.batched:
        return _serial(loaded, config, meter, stream, disk)
    price = first_look(loaded.text, config, meter)
    _first_image(loaded)
    measures = Measures(stream, meter, price.with_images(loaded.encoder.price))
    return VisionRunner(loaded, config, measures, disk)


def _serial(
    loaded: LoadedVision, config: EngineConfig, meter: PeakMeter, stream: Any, disk: PrefixDisk | None
) -> ModelRunner:
    """Have a model that cannot be batched take its requests in turn. Raises LoadError."""
    look = serial_look(loaded, config, meter)
    runner = SerialVisionRunner(loaded, config, Measures(stream, meter, look.price), look)
    log.info("engine.not_batched", model=config.name, family=loaded.family)
    if disk is not None:
        # nothing is kept of what it has processed
        disk.close(0)
    return runner


def _first_image(loaded: LoadedVision) -> None:
    """Encode an image or two. Raises LoadError for a model that cannot."""
    try:
        try_images(lambda side: loaded.encoder.encode(loaded.tokenizer.trial_image(side)))
    # whatever it raises, every image would meet it
    except Exception as error:
        message = f"its first image failed: {type(error).__name__}: {error}"
        reason = LoadFailure.OUT_OF_MEMORY if is_out_of_memory(error) else LoadFailure.UNSUPPORTED
        raise LoadError(reason, message) from error
