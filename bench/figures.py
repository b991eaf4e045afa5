"""What a bench says: figures of two sides that were measured in turn, or of one, each with what is aimed at."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Samples = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound for a figure."""

    bound: float
    at_least: bool

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"

    def is_met(self, value: float) -> bool:
        """Whether a value keeps the bound."""
        return value >= self.bound if self.at_least else value <= self.bound


def at_least(bound: float) -> Aim:
    """The more, the better."""
    return Aim(bound, at_least=True)


def at_most(bound: float) -> Aim:
    """The less, the better."""
    return Aim(bound, at_least=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """Samples of ours and, for a ratio, of what it is compared with in the same rounds."""

    what: str
    side: str
    unit: str
    samples: Sequence[float]
    base: str = ""
    base_samples: Sequence[float] = ()
    aim: Aim | None = None
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """Of each round."""
        return [ours / theirs for ours, theirs in zip(self.samples, self.base_samples, strict=True)]

    @property
    def value(self) -> float:
        """What the aim is about: the median ratio, or the median where there is nothing to compare with."""
        return statistics.median(self.ratios if self.base else self.samples)

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is reached; None without one."""
        return None if self.aim is None else self.aim.is_met(self.value)

    def cells(self) -> list[str]:
        """As a line of a table."""
        spread = self.ratios if self.base else list(self.samples)
        ratio = f"**{self.value:.3g}** ({min(spread):.3g} to {max(spread):.3g})"
        theirs = f"{statistics.median(self.base_samples):.4g}" if self.base else ""
        met = {None: "", True: "yes", False: "**no**"}[self.is_met]
        aim = str(self.aim) if self.aim is not None else ""
        what = f"{self.what}{' (' + self.note + ')' if self.note else ''}"
        ours = f"{statistics.median(self.samples):.4g} {self.unit}"
        return [what, self.side, ours, self.base, theirs, ratio, aim, met]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "what": self.what,
            "side": self.side,
            "unit": self.unit,
            "samples": list(self.samples),
            "base": self.base or None,
            "base_samples": list(self.base_samples),
            "value": self.value,
            "aim": str(self.aim) if self.aim is not None else None,
            "met": self.is_met,
            "note": self.note,
        }


HEADS = ["what", "side", "median", "compared with", "its median", "ratio or value (spread)", "aim", "reached"]


def table(figures: Sequence[Figure]) -> str:
    """In Markdown."""
    lines = [HEADS, ["---"] * len(HEADS), *(figure.cells() for figure in figures)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(slots=True)
class Report:
    """What was measured so far, and what could not be, with the reason."""

    rounds: int
    figures: list[Figure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, figure: Figure) -> None:
        """Keep one and show it."""
        self.figures.append(figure)
        print("  " + " | ".join(cell for cell in figure.cells() if cell), flush=True)

    def ratio(self, what: str, unit: str, samples: Samples, side: str, base: str, **options: Any) -> None:
        """Keep one side of `samples` against another, if both are there."""
        if side in samples and base in samples:
            self.add(Figure(what, side, unit, samples[side], base, samples[base], **options))

    def skip(self, what: str) -> None:
        """Note what is left out."""
        self.skipped.append(what)
        print(f"  left out: {what}", flush=True)


async def in_turn(parts: Mapping[str, Callable[[int], Awaitable[float]]], rounds: int) -> dict[str, list[float]]:
    """Samples of each part, A B A B, after one round that only warms up; a part is told the number of its round.

    Every other round goes backwards: whoever comes after a heavy one must not always be the same.
    """
    samples: dict[str, list[float]] = {name: [] for name in parts}
    for number in range(rounds + 1):
        order = list(parts.items())
        for name, part in order if number % 2 else reversed(order):
            value = await part(number)
            if number:
                samples[name].append(value)
    return samples
