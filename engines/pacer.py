"""Sizes prefill chunks by the measured speed, so that nobody waits long for a prompt that is not theirs."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

# Tokens of the first chunk, before any speed is known.
FIRST_CHUNK = 64
# Below it a chunk is mostly what every step costs.
LEAST_CHUNK = 16
# A prompt that prefills alone stalls no stream, only aborts and arrivals: it may take so many times longer steps.
ALONE_FACTOR = 4
# How many times the largest chunk that was measured the next one may be: what is not measured is not trusted far.
GROWTH = 2
# Weight of the newest measurement of a decode step.
_NEWEST = 0.5
_REMEMBERED = 8
# Of what a token has cost, what one at the start of a prompt costs at least.
_LEAST_SHARE = 1 / 8


@dataclass(frozen=True, slots=True)
class _Measured:
    """Seconds for each token of a chunk whose middle was `depth` tokens into its prompt."""

    depth: float
    seconds: float


class PrefillPacer:
    """Chunk sizes in tokens, for chunks of at most `max_stall` seconds (None for no bound) and `limit` tokens.

    A chunk costs a fixed part, which is taken to be that of a decode step (both read all weights), and for each token
    a part that grows with the depth in its prompt, since a token attends to all before it. The growth is the slope of
    a least-squares line through the last measurements.
    """

    def __init__(self, limit: int, max_stall: float | None) -> None:
        self._limit = limit
        self._max_stall = max_stall
        self._decode_seconds = 0.0
        self._largest = 0
        self._measured: deque[_Measured] = deque(maxlen=_REMEMBERED)

    def retune(self, limit: int, max_stall: float | None) -> None:
        """Other bounds from the next chunk on; what was measured stays."""
        self._limit = limit
        self._max_stall = max_stall

    def observe(self, tokens: int, seconds: float, *, rows: int = 1, depth: int = 0) -> None:
        """A step processed `tokens` prompt tokens of `rows` prompts, `depth` tokens into the deepest of them."""
        if tokens <= 0 or seconds <= 0:
            return
        fixed = min(self._decode_seconds, seconds / 2)
        chunk = max(1, tokens // max(1, rows))
        self._largest = max(self._largest, chunk)
        self._measured.append(_Measured(depth + chunk / 2, (seconds - fixed) / tokens))

    def observe_decode(self, seconds: float) -> None:
        """A step decoded for so many seconds."""
        self._decode_seconds = _NEWEST * seconds + (1 - _NEWEST) * self._decode_seconds

    def chunk(self, rows: int, *, decoding: bool, depth: int = 0) -> int:
        """Tokens of each of `rows` prompts in the next step, the deepest of which has `depth` behind it."""
        if self._max_stall is None:
            return self._limit
        if not self._measured:
            return min(self._limit, FIRST_CHUNK)
        budget = self._max_stall if decoding else ALONE_FACTOR * self._max_stall
        for_tokens = (budget - min(self._decode_seconds, budget / 2)) / max(1, rows)
        tokens = min(self._fitting(for_tokens, depth), GROWTH * self._largest, self._limit)
        return self._limit if tokens == self._limit else min(self._limit, max(LEAST_CHUNK, _round_down(int(tokens))))

    def _fitting(self, seconds: float, depth: int) -> float:
        """Tokens whose cost adds up to so many seconds, the first of them `depth` tokens into its prompt."""
        learned = self._slope()
        # with measurements at one depth alone all of the cost may come from it, or none: the worse is assumed
        slope = self._measured[-1].seconds / max(1.0, self._measured[-1].depth) if learned is None else learned
        least = 1.0 if learned is None else _LEAST_SHARE
        # the dearer of the last two at this depth: what was just slow may be so again
        last = [self._measured[-1], self._measured[-min(2, len(self._measured))]]
        first = max(max(one.seconds + slope * (depth - one.depth), one.seconds * least) for one in last)
        if first * self._limit + slope * self._limit**2 / 2 <= seconds:
            return self._limit
        # seconds = tokens * first + slope * tokens² / 2
        return 2 * seconds / (first + math.sqrt(first * first + 2 * slope * seconds))

    def _slope(self) -> float | None:
        """Seconds by which each token gets dearer with every token before it, never negative; None when not known."""
        depths = [one.depth for one in self._measured]
        middle, mean = sum(depths) / len(depths), sum(one.seconds for one in self._measured) / len(depths)
        spread = sum((depth - middle) ** 2 for depth in depths)
        if spread < 1:
            return None
        return max(0.0, sum((one.depth - middle) * (one.seconds - mean) for one in self._measured) / spread)


def _round_down(tokens: int) -> int:
    """The largest 2^n or 3*2^n that is not above `tokens`; few sizes keep shapes and kernels few."""
    power = 1 << (tokens.bit_length() - 1) if tokens > 0 else 0
    return power + power // 2 if power + power // 2 <= tokens else power
