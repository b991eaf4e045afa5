"""How many tokens an encoder takes in one step, so that whoever waits for the step's end does not wait long."""

from __future__ import annotations

from mlxd.engines.types import EngineLimits

# Tokens of the smallest step, in which the overhead of a step is not the most of it.
LEAST = 512
# A step is at most so many times as large as one that was measured.
_GROWTH = 2
# Seconds of a step when nothing bounds it: the largest are for memory's sake alone.
_UNBOUND = 1.0


class EmbeddingPace:
    """Sizes steps by the speed of those before, between LEAST and what a prefill step of text may have."""

    def __init__(self, limits: EngineLimits, rows: int) -> None:
        self._limits = limits
        self._rows = rows
        self._tokens = LEAST

    def retune(self, limits: EngineLimits) -> None:
        """Other limits from the next step on."""
        self._limits = limits
        self._tokens = min(self._tokens, self._most)

    def tokens(self, *, slow: bool) -> int:
        """Tokens of the next step, with padding; the fewest if memory is short."""
        return LEAST if slow else self._tokens

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens, with padding, took so long."""
        wanted = _UNBOUND if self._limits.max_stall is None else self._limits.max_stall
        reached = int(tokens / max(seconds, 1e-6) * wanted)
        # a small step says little of larger ones, unless it took too long already
        if seconds > wanted or tokens * _GROWTH >= self._tokens:
            self._tokens = max(LEAST, min(reached, tokens * _GROWTH, self._most))

    @property
    def _most(self) -> int:
        return max(LEAST, self._limits.prefill_chunk * self._rows)
