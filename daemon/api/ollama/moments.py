"""Moments and durations in Ollama's units."""

from __future__ import annotations

from datetime import UTC, datetime

NEVER = "9999-12-31T23:59:59Z"
"""Stands for a moment that does not come."""

_NANOSECONDS = 1_000_000_000
# Years 1 to 9999 are all that can be written; the time of a file may be any.
_FIRST, _LAST = -62_135_596_800, 253_402_300_799


def rfc3339(seconds: float) -> str:
    """A moment in seconds since the epoch."""
    moment = datetime.fromtimestamp(min(max(seconds, _FIRST), _LAST), UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float | None) -> int:
    """A duration; 0 for one that is not known."""
    return max(0, round((seconds or 0.0) * _NANOSECONDS))
