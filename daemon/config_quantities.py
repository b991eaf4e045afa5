"""Rules for durations and sizes."""

from __future__ import annotations

from collections.abc import Sequence

from mlxd.daemon.config_rules import Base, Rule, Unexpected
from mlxd.daemon.units import Size, format_duration, parse_duration, parse_size


def duration(low: float = 0.0, *, never: bool = False) -> Rule:
    """Seconds, `low` or more; None for "never" where that makes sense."""

    def read(value: object, _base: Base) -> float | None:
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise _with_words(error, ["never"] if never else []) from None
        if seconds is None and not never:
            raise Unexpected('expected a duration with an end, such as "30s"')
        if seconds is not None and seconds < low:
            raise Unexpected(f"expected a duration of {format_duration(low)} or more")
        return seconds

    return Rule(read, write=_written_duration)


def _written_duration(seconds: float | None) -> str | float | None:
    text = format_duration(seconds)
    return text if parse_duration(text) == seconds else seconds


def size(*words: str, percent: bool = True, low: int = 1) -> Rule:
    """A `Size` of at least `low` bytes and above 0 %, or one of these words as it is."""

    def read(value: object, _base: Base) -> Size | str:
        if isinstance(value, str) and value.strip().lower() in words:
            return value.strip().lower()
        try:
            found = parse_size(value, percent=percent)
        except ValueError as error:
            raise _with_words(error, words) from None
        if found.bytes is not None and found.bytes < low:
            raise Unexpected(f"expected a size of {low} bytes or more")
        if found.fraction == 0:
            raise Unexpected("expected more than 0%")
        return found

    return Rule(read, write=str)


def byte_count(low: int = 1) -> Rule:
    """A size without a percentage, as a plain number of bytes."""
    sized = size(percent=False, low=low)

    def read(value: object, base: Base) -> int:
        return int(sized.read(value, base).bytes)

    return Rule(read, write=lambda count: str(Size(bytes=count)))


def _with_words(error: ValueError, words: Sequence[str]) -> Unexpected:
    alternatives = "".join(f'"{word}", or ' for word in words)
    return Unexpected(f"expected {alternatives}{str(error).removeprefix('expected ')}")
