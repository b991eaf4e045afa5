"""Which waiting sequence starts next. In order of arrival, but for four cases in which one may pass another:

A sequence whose prefix is being read from the disk waits for that. A long prompt waits while another long one is
prefilled, since together they would both be late, and short ones pass it; prompts with images, which are encoded one
after the other, have half of the places, so that text passes them too. A prompt that begins like one that is being
prefilled waits for its cache, if that is sooner than doing the same work again. No wait can last: what is waited for
advances with every step, or is a read that ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from mlxd.engines.backend import ModelRunner
from mlxd.engines.sequence import Sequence
from mlxd.engines.types import EngineConfig, EngineLimits, RequestState

# Tokens that must be saved for a prompt to wait for another's cache.
LEAST_SHARED = 64
# Waiting sequences that are looked at in one step: comparing prompts takes time from those that decode.
LOOK_AHEAD = 32


class Admission:
    """Chooses by what the runner knows: its prefix cache, and how long a prompt is short."""

    def __init__(self, runner: ModelRunner, config: EngineConfig) -> None:
        self._runner = runner
        self._config = config

    def retune(self, limits: EngineLimits) -> None:
        """Other limits from the next choice on."""
        self._config = self._config.with_limits(limits)

    def is_full(self, running: int) -> bool:
        """Whether none can start beside so many that run."""
        return running >= self._config.max_running

    def next(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> Sequence | None:
        """The sequence to start now, None when none should."""
        running = list(running)
        if self.is_full(len(running)):
            return None
        prefilling = [sequence for sequence in running if sequence.state is RequestState.PREFILLING]
        if len(prefilling) >= self._config.prefill_batch:
            return None
        short = self._runner.short_prompt
        long_is_under_way = any(sequence.uncached_tokens > short for sequence in prefilling)
        images_are_under_way = self._has_enough_images(prefilling)
        for sequence in islice(self._ready(waiting, without_images=images_are_under_way), LOOK_AHEAD):
            if long_is_under_way and self._uncached(sequence) > short:
                continue
            if not any(self._should_wait_for(sequence, other) for other in prefilling):
                return sequence
        return None

    def _has_enough_images(self, prefilling: Iterable[Sequence]) -> bool:
        """Whether prompts with images have all the places that they may have."""
        return sum(one.request.images is not None for one in prefilling) >= max(1, self._config.prefill_batch // 2)

    @staticmethod
    def _ready(waiting: Iterable[Sequence], *, without_images: bool) -> Iterator[Sequence]:
        for sequence in waiting:
            if not sequence.awaits_prefix and not (without_images and sequence.request.images is not None):
                yield sequence

    def _uncached(self, sequence: Sequence) -> int:
        sequence.look_up(self._runner.prefixes)
        return sequence.uncached_tokens

    def _should_wait_for(self, sequence: Sequence, other: Sequence) -> bool:
        shared = self._runner.prefixes.shared_tokens(sequence.tokens, other.tokens)
        if shared < LEAST_SHARED:
            return False
        saved = shared - (len(sequence.tokens) - self._uncached(sequence))
        return saved >= LEAST_SHARED and other.uncached_tokens <= 2 * saved
