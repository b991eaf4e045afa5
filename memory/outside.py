"""What the world around this process says about memory, and what the soft mark became of it: plain frozen data."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class StrainLevel(enum.StrEnum):
    """How short of memory the operating system says it is."""

    NONE = "none"
    WARN = "warn"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Strain:
    """The operating system's word; `told` is what it said, for people. NONE where it says nothing."""

    level: StrainLevel = StrainLevel.NONE
    told: str = ""


CALM = Strain()
"""Nothing is short, or nobody says so."""


class Cause(enum.StrEnum):
    """What holds the soft mark below the configured soft limit."""

    NOTHING = ""
    STRAIN = "memory pressure"
    MACHINE = "machine available"
    CGROUP = "cgroup available"


@dataclass(frozen=True, slots=True)
class Mark:
    """The soft mark in bytes, and what holds it where it is; without a cause it is the configured soft limit."""

    bytes: int
    cause: Cause = Cause.NOTHING
    detail: str = ""

    @property
    def reason(self) -> str:
        """The cause for people, with what the operating system said; empty without a cause."""
        return f"{self.cause} ({self.detail})" if self.detail else str(self.cause)
