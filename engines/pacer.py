"""Sizes prefill chunks by the measured speed, so that nobody waits long for a prompt that is not theirs."""

from __future__ import annotations

# Tokens of the first chunk, before any speed is known.
FIRST_CHUNK = 64
LEAST_CHUNK = 16
# A prompt that prefills alone stalls no stream, only aborts and arrivals: it may take so many times longer steps.
ALONE_FACTOR = 4
# Weight of the newest measurement; a chunk deep in a long prompt is slower than one at its start.
_NEWEST = 0.5


class PrefillPacer:
    """Chunk sizes in tokens, for steps of at most `max_stall` seconds (None for no bound) and `limit` tokens."""

    def __init__(self, limit: int, max_stall: float | None) -> None:
        self._limit = limit
        self._max_stall = max_stall
        self._seconds_per_token: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """A step processed `tokens` prompt tokens, padding included, in so many seconds."""
        if tokens <= 0 or seconds <= 0:
            return
        newest, known = seconds / tokens, self._seconds_per_token
        self._seconds_per_token = newest if known is None else _NEWEST * newest + (1 - _NEWEST) * known

    def chunk(self, rows: int, *, decoding: bool) -> int:
        """Tokens of each of `rows` prompts in the next step; a power of two, or the limit."""
        if self._max_stall is None:
            return self._limit
        if self._seconds_per_token is None:
            return min(self._limit, FIRST_CHUNK)
        budget = self._max_stall if decoding else ALONE_FACTOR * self._max_stall
        seconds_per_step_token = self._seconds_per_token * max(1, rows)
        if seconds_per_step_token * self._limit <= budget:
            return self._limit
        return min(self._limit, max(LEAST_CHUNK, _power_of_two(int(budget / seconds_per_step_token))))


def _power_of_two(tokens: int) -> int:
    """The largest power of two that is not above `tokens`; few sizes keep compiled shapes few."""
    return 1 << (tokens.bit_length() - 1) if tokens > 0 else 0
