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
    """Chunk sizes in tokens, for chunks of at most `max_stall` seconds (None for no bound) and `limit` tokens.

    A chunk costs a fixed part, which is taken to be that of a decode step (both read all weights), and a part for
    each token. Without the first a small chunk would look slow, and the next would be smaller still.
    """

    def __init__(self, limit: int, max_stall: float | None) -> None:
        self._limit = limit
        self._max_stall = max_stall
        self._decode_seconds = 0.0
        self._seconds_per_token: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """A step processed `tokens` prompt tokens in so many seconds."""
        if tokens <= 0 or seconds <= 0:
            return
        fixed = min(self._decode_seconds, seconds / 2)
        newest, known = (seconds - fixed) / tokens, self._seconds_per_token
        # a slow step counts in full at once, a fast one little by little: what was just slow may be so again
        faster = known is not None and newest < known
        self._seconds_per_token = _NEWEST * newest + (1 - _NEWEST) * known if faster and known else newest

    def observe_decode(self, seconds: float) -> None:
        """A step decoded for so many seconds."""
        self._decode_seconds = _NEWEST * seconds + (1 - _NEWEST) * self._decode_seconds

    def chunk(self, rows: int, *, decoding: bool) -> int:
        """Tokens of each of `rows` prompts in the next step: a power of two, one and a half of one, or the limit."""
        if self._max_stall is None:
            return self._limit
        if self._seconds_per_token is None:
            return min(self._limit, FIRST_CHUNK)
        budget = self._max_stall if decoding else ALONE_FACTOR * self._max_stall
        for_tokens = budget - min(self._decode_seconds, budget / 2)
        seconds_per_chunk_token = self._seconds_per_token * max(1, rows)
        if seconds_per_chunk_token * self._limit <= for_tokens:
            return self._limit
        return min(self._limit, max(LEAST_CHUNK, _round_down(int(for_tokens / seconds_per_chunk_token))))


def _round_down(tokens: int) -> int:
    """The largest 2^n or 3*2^n that is not above `tokens`; few sizes keep shapes and kernels few."""
    power = 1 << (tokens.bit_length() - 1) if tokens > 0 else 0
    return power + power // 2 if power + power // 2 <= tokens else power
