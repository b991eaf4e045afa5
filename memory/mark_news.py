"""When a soft mark that moves is worth a line in the log: pure."""

from __future__ import annotations

import enum

from mlxd.memory.outside import Mark, StrainLevel

STEPS = 20
"""A mark that goes on falling is news again after so much of the configured limit."""


class News(enum.Enum):
    """What there is to tell of the mark."""

    DOWN = enum.auto()
    BACK = enum.auto()


class MarkNews:
    """Remembers what was told of the mark."""

    def __init__(self) -> None:
        self._told: tuple[Mark, StrainLevel] | None = None

    def observe(self, mark: Mark, level: StrainLevel, configured: int) -> News | None:
        """What to tell of this mark, if anything.

        DOWN when it leaves the configured limit, and again for another cause, a worse level or a twentieth less;
        BACK once it is at the configured limit again. A return that is half-way is not told.
        """
        if not mark.cause:
            told, self._told = self._told, None
            return News.BACK if told is not None else None
        if self._told is not None and not self._is_worse(*self._told, mark, level, configured):
            return None
        self._told = mark, level
        return News.DOWN

    @staticmethod
    def _is_worse(told: Mark, told_level: StrainLevel, mark: Mark, level: StrainLevel, configured: int) -> bool:
        levels = tuple(StrainLevel)
        return (
            mark.bytes <= told.bytes - configured // STEPS
            or levels.index(level) > levels.index(told_level)
            or (mark.cause is not told.cause and mark.bytes < told.bytes)
        )
