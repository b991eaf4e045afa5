"""What every runner of a text model has: the model's facts, prefill pacing, kept prefixes and faults of single rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

from mlxd.engines.backend import TextStream
from mlxd.engines.cache_layers import CacheShape
from mlxd.engines.kept_prefixes import KeptPrefixes, PrefixLimits
from mlxd.engines.loader import LoadedText
from mlxd.engines.memory_share import Stake
from mlxd.engines.pacer import PrefillPacer
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.prompt_price import PromptPrice
from mlxd.engines.row_faults import RowFault
from mlxd.engines.text_stream import text_stream
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import EngineConfig, EngineLimits, ModelInfo, Request


@dataclass(frozen=True, slots=True)
class Measures:
    """The lane's stream, its meter, and what was measured of the model when it was loaded."""

    stream: Any
    meter: PeakMeter
    price: PromptPrice


class FaultyRow(Protocol):
    """A row whose own sampler or processors may raise."""

    @property
    def uid(self) -> int: ...

    @property
    def fault(self) -> RowFault: ...


class RunnerBase:
    """The common part of runners; every call is made on the engine's lane, under its stream."""

    def __init__(
        self, loaded: LoadedText, config: EngineConfig, measures: Measures, shape: CacheShape, disk: PrefixDisk | None
    ) -> None:
        self._model = loaded.model
        self._tokenizer = loaded.tokenizer
        self._info = loaded.info
        self._config = config
        self._stream = measures.stream
        self._meter = measures.meter
        self._price = measures.price
        self._most_chunk: int | None = None
        self._pacer = PrefillPacer(config.prefill_chunk, config.max_stall)
        self._uids = count(1)
        limits = PrefixLimits(config.prefix_cache_bytes, config.kv_bytes_per_token)
        self._prefixes = self._kept(limits, shape, disk)

    def _kept(self, limits: PrefixLimits, shape: CacheShape, disk: PrefixDisk | None) -> KeptPrefixes:
        """What keeps processed prompts."""
        return KeptPrefixes(limits, shape, disk)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def prefixes(self) -> KeptPrefixes:
        return self._prefixes

    @property
    def short_prompt(self) -> int:
        return self._pacer.chunk(1, decoding=False)

    @property
    def price(self) -> PromptPrice:
        return self._price

    def share(self, stake: Stake) -> Stake:
        """What its prompts are counted in."""
        return stake

    def slow_down(self, chunk: int | None) -> None:
        """Take prompts in chunks of at most so many tokens, None for as usual."""
        self._most_chunk = chunk

    def _bounded(self, chunk: int, rows_chunk: int) -> int:
        """A chunk within what memory allows: the rows', and everybody's."""
        return min(chunk, rows_chunk, self._most_chunk or chunk)

    def _observe_peak(self, rows: int, chunk: int, keys: int, nbytes: int) -> None:
        seen = self._price.transients.observed(rows, chunk, keys, nbytes)
        self._price = replace(self._price, transients=seen)

    def retune(self, limits: EngineLimits) -> None:
        """Other prefill chunks from the next step on, and another time for what is kept at the end."""
        self._config = self._config.with_limits(limits)
        self._pacer.retune(limits.prefill_chunk, limits.max_stall)

    @property
    def has_finished(self) -> bool:
        return False

    def keep_finished(self) -> None:
        """What ended is kept already."""

    def text_stream(self, request: Request) -> TextStream:
        """A fresh text stream for one request."""
        return text_stream(self._tokenizer, request)


def faults(rows: Iterable[FaultyRow]) -> tuple[tuple[int, Exception], ...]:
    """The rows whose own sampler or processors raised in the last step, with their errors."""
    return tuple((row.uid, row.fault.error) for row in rows if row.fault.error is not None)
