"""An encoder and its padded batches. Every call happens on the engine's lane."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxd.engines.embedding_types import EncoderInfo, EncoderInput
from mlxd.engines.encoder_loader import LoadedEncoder
from mlxd.engines.encoder_tokenizer import EncoderTokenizer
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.first_look import QUICK, SECOND
from mlxd.engines.loader import is_out_of_memory
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.transients import LEAST_CHUNK, Shape, Transients
from mlxd.engines.types import EngineConfig, ModelInfo


class EmbeddingRunner:
    """Makes vectors, or scores, of inputs. A few tokens are tried at once: raises LoadError for a model that cannot."""

    def __init__(self, loaded: LoadedEncoder, config: EngineConfig, meter: PeakMeter) -> None:
        self._model = loaded.model
        self._sentence = loaded.sentence
        self._meter = meter
        self.tokenizer: EncoderTokenizer = loaded.tokenizer
        self.transients = Transients(Shape(loaded.attention_heads, config.itemsize))
        modules = loaded.modules
        encoder = EncoderInfo(
            loaded.head,
            self._first_look(loaded.max_length, loaded.vocab_size),
            loaded.max_length,
            modules.unit,
            modules.prompts,
            modules.default_prompt,
        )
        self.info = ModelInfo(loaded.vocab_size, loaded.weight_bytes, encoder)

    def run(self, inputs: Sequence[EncoderInput]) -> tuple[bytes | None, ...]:
        """For each input its numbers as little-endian float32; None where they are not finite. Raises what MLX does."""
        width = max(map(len, inputs))
        tokens = np.zeros((len(inputs), width), np.int32)
        types = np.zeros_like(tokens)
        lengths = np.array([len(each) for each in inputs], np.int32)
        for row, each in enumerate(inputs):
            tokens[row, : len(each)] = each.tokens
            types[row, len(each) - each.second : len(each)] = 1
        with self._meter.measured() as peak:
            numbers = self._forward(tokens, types, lengths)
        if peak.nbytes is not None:
            self.transients = self.transients.observed(len(inputs), width, width, peak.nbytes)
        finite = np.isfinite(numbers).all(axis=1)
        return tuple(row.tobytes() if good else None for row, good in zip(numbers, finite, strict=True))

    def close(self) -> None:
        """Drop the model."""
        del self._model, self._sentence

    def _forward(self, tokens: np.ndarray, types: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        real = np.arange(tokens.shape[1]) < lengths[:, None]
        out = self._model(mx.array(tokens), mx.array(types), mx.array(real))
        out = out.astype(mx.float32) if self._sentence is None else self._sentence(out, mx.array(lengths))
        return np.array(out, dtype="<f4")

    def _first_look(self, max_length: int, vocab_size: int) -> int:
        """How many numbers come out for each input."""
        started = time.perf_counter()
        dimensions = self._try(min(LEAST_CHUNK, max_length), vocab_size)
        if time.perf_counter() - started < QUICK:
            self._try(min(SECOND, max_length), vocab_size)
        mx.clear_cache()
        return dimensions

    def _try(self, length: int, vocab_size: int) -> int:
        tokens = EncoderInput(array("i", (place % vocab_size for place in range(length))))
        try:
            [numbers] = self.run([tokens])
        # Whatever a forward pass raises, every request would meet it.
        except Exception as error:
            reason = LoadFailure.OUT_OF_MEMORY if is_out_of_memory(error) else LoadFailure.UNSUPPORTED
            raise LoadError(reason, f"its first step failed: {type(error).__name__}: {error}") from error
        if numbers is None:
            raise LoadError(LoadFailure.BAD_FILES, "its first step gave numbers that are not finite")
        return len(numbers) // 4
