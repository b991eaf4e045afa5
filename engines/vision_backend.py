"""The part of the MLX backend that needs the vision extra."""

from __future__ import annotations

import time
from typing import Any

import mlx.core as mx

from mlxd.engines.backend import ModelRunner
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.first_look import first_look
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.loader import is_out_of_memory
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.runner_base import Measures
from mlxd.engines.types import EngineConfig
from mlxd.engines.vision_encoder import EncoderWatch
from mlxd.engines.vision_loader import LoadedVision, load_vision_model
from mlxd.engines.vision_runner import VisionRunner

# Pixels on a side of the images that a fresh model is tried with, and the seconds that the first may have taken for
# there to be a second, which shows how the price grows.
FIRST, SECOND = 64, 448
QUICK = 0.1


def load(config: EngineConfig, watch: LoadWatch, stream: Any, disk: PrefixDisk | None) -> ModelRunner:
    """Load a vision model and try it. Raises LoadError."""
    meter = PeakMeter(watch.crowd)
    shares_processor = mx.default_device().type == mx.DeviceType.cpu
    lane = EncoderWatch(meter, watch.turns if shares_processor else None)
    loaded = load_vision_model(config, watch, lane)
    price = first_look(loaded.text, config, meter)
    _first_image(loaded)
    measures = Measures(stream, meter, price.with_images(loaded.encoder.price))
    return VisionRunner(loaded, config, measures, disk)


def _first_image(loaded: LoadedVision) -> None:
    """Encode an image or two. Raises LoadError for a model that cannot."""
    try:
        started = time.perf_counter()
        loaded.encoder.encode(loaded.tokenizer.trial_image(FIRST))
        if time.perf_counter() - started < QUICK:
            loaded.encoder.encode(loaded.tokenizer.trial_image(SECOND))
    # whatever it raises, every image would meet it
    except Exception as error:
        message = f"its first image failed: {type(error).__name__}: {error}"
        reason = LoadFailure.OUT_OF_MEMORY if is_out_of_memory(error) else LoadFailure.UNSUPPORTED
        raise LoadError(reason, message) from error
