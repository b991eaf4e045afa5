"""Sizes and durations as people write them, and back."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

DURATION_FORMS = 'seconds, or a duration such as "500ms", "30s", "5m" or "1h"'
MAX_DURATION = 10 * 365 * 86400.0
"""Longest duration in seconds that is taken; beyond it, "never" is meant."""

_MAX_BYTES = 2**63 - 1
_BINARY = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_DECIMAL = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3}
_FACTORS = {suffix.lower(): factor for suffix, factor in (_BINARY | _DECIMAL | {"B": 1}).items()}
_SIZE = re.compile(r"(-?[0-9]{1,19}(?:\.[0-9]{1,9})?) ?([A-Za-z]+|%)")
_COUNT = re.compile(r"-?[0-9]{1,19}")

_SECONDS = {"h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_DURATION = re.compile(
    rf"(?P<sign>-?)(?:(?P<h>{_NUMBER}) ?h)?(?:(?P<m>{_NUMBER}) ?m)?(?:(?P<s>{_NUMBER}) ?s)?(?:(?P<ms>{_NUMBER}) ?ms)?"
)
_BARE_NUMBER = re.compile(rf"-?{_NUMBER}")
_OTHER_UNIT = re.compile(rf"{_NUMBER} ?([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, or a fraction of a total that is known later; exactly one is set."""

    bytes: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one of the two is set."""
        if (self.bytes is None) == (self.fraction is None):
            raise ValueError("a Size has either bytes or a fraction")

    def resolve(self, total: int) -> int:
        """The size in bytes, given the total in bytes that a fraction is of."""
        if self.bytes is not None:
            return self.bytes
        return int(total * (self.fraction or 0.0))

    def __str__(self) -> str:
        """The shortest text that `parse_size` reads back as this size."""
        if self.bytes is None:
            percent = Decimal(str(self.fraction)) * 100
            return f"{percent.normalize():f}%"
        count = self.bytes
        exact = [f"{count // by}{unit}" for unit, by in (_BINARY | _DECIMAL).items() if count and count % by == 0]
        return min([*exact, f"{count}B"], key=len)


def parse_size(value: object, *, percent: bool = True) -> Size:
    """Read a whole number of bytes, a size with a unit, or a percentage where one makes sense.

    ValueError says what was expected.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked_size(value)
    if isinstance(value, str):
        text = value.strip()
        if _COUNT.fullmatch(text):
            return _checked_size(int(text))
        if match := _SIZE.fullmatch(text):
            return _unit_size(Decimal(match[1]), match[2], percent)
    raise ValueError(f"expected {_size_forms(percent)}")


def _size_forms(percent: bool) -> str:
    return 'bytes, or a size such as "512MB", "24GiB" or "80%"' if percent else 'bytes, or a size such as "512MB"'


def _unit_size(number: Decimal, unit: str, percent: bool) -> Size:
    if unit == "%" and percent:
        if not 0 <= number <= 100:  # noqa: PLR2004 - a percentage
            raise ValueError("expected 0% to 100%")
        return Size(fraction=float(number / 100))
    factor = _FACTORS.get(unit.lower())
    if factor is None:
        units = "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
        raise ValueError(f'expected {_size_forms(percent)}; "{unit}" is not one of {units}')
    return _checked_size(round(number * factor))


def _checked_size(count: int) -> Size:
    if count < 0:
        raise ValueError("expected a size that is not negative")
    if count > _MAX_BYTES:
        raise ValueError("expected a size below 8 EiB")
    return Size(bytes=count)


def parse_duration(value: object) -> float | None:
    """Read a duration in seconds, None for "never"; ValueError says what was expected.

    Units may be combined from the largest down, as in "1h30m".
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _checked_duration(value)
    if isinstance(value, str):
        text = value.strip()
        if text.lower() == "never":
            return None
        if _BARE_NUMBER.fullmatch(text):
            return _checked_duration(float(text))
        match = _DURATION.fullmatch(text)
        if match and any(match[unit] for unit in _SECONDS):
            seconds = sum((Decimal(match[unit] or 0) * by for unit, by in _SECONDS.items()), Decimal())
            return _checked_duration(float(-seconds if match["sign"] else seconds))
        if other := _OTHER_UNIT.fullmatch(text):
            raise ValueError(f'expected {DURATION_FORMS}; "{other[1]}" is not one of ms, s, m, h')
    raise ValueError(f"expected {DURATION_FORMS}")


def _checked_duration(seconds: float) -> float:
    if isinstance(seconds, float) and not math.isfinite(seconds):
        raise ValueError(f"expected {DURATION_FORMS}")
    if seconds < 0:
        raise ValueError("expected a duration that is not negative")
    if seconds > MAX_DURATION:
        raise ValueError('expected a duration of at most 10 years; "never" means no end')
    return abs(float(seconds))


def format_bytes(count: int) -> str:
    """A number of bytes for people, in binary units with one decimal, as in "1.5 GiB"."""
    for suffix, factor in _BINARY.items():
        # a rounded 1024.0 belongs to the next unit
        if round(abs(count) / (factor / 1024), 1) >= 1024:  # noqa: PLR2004 - the step between units
            return f"{count / factor:.1f} {suffix}"
    return f"{count} B"


def format_duration(seconds: float | None) -> str:
    """A duration for people, exact to the millisecond, as in "1h30m"; None is "never".

    From a millisecond up, `parse_duration` reads the text back.
    """
    if seconds is None:
        return "never"
    sign = "-" if seconds < 0 else ""
    total = round(abs(seconds) * 1000)
    if 0 < total < 1000:  # noqa: PLR2004 - milliseconds in a second
        return f"{sign}{total}ms"
    minutes, rest = divmod(total, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h" * bool(hours) + f"{minutes}m" * bool(minutes)
    if rest or not text:
        text += f"{Decimal(rest) / 1000:f}s"
    return sign + text
