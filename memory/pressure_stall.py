"""Linux's pressure stall information: the share of time in which work waits for memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mlxd.memory.outside import CALM, Strain, StrainLevel

WARN_SOME = 10.0
"""Per cent of the last ten seconds in which some task waited for memory: one second in ten is felt by its user.

A machine with enough memory stays below 1 even while it reads big files.
"""
CRITICAL_SOME = 40.0
CRITICAL_FULL = 10.0
"""Per cent in which no task could work: the memory is thrashed.

Well before the usual killers: systemd-oomd takes 60 % over half a minute, and the kernel waits longer than that.
"""
_AVG10 = re.compile(rb"^(some|full) avg10=(\d{1,3}\.\d+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stall:
    """Per cent of the last ten seconds in which some tasks, or all that had work, waited for memory."""

    some: float = 0.0
    full: float = 0.0


def read_stall(file: Path) -> Stall:
    """What a pressure file says; nothing where there is none, it is switched off or it is not understood."""
    try:
        text = file.read_bytes()
    except OSError:
        # no such file on an older kernel or in a group that is gone; EOPNOTSUPP on one booted with psi=0
        return Stall()
    shares = {kind.decode(): float(share) for kind, share in _AVG10.findall(text)}
    return Stall(shares.get("some", 0.0), shares.get("full", 0.0))


@dataclass(frozen=True, slots=True)
class StallFiles:
    """Where stalls are told: for the whole machine, and for the own control group if there is one."""

    machine: Path
    group: Path | None

    def strain(self, *, machine_short: bool, group_short: bool) -> Strain:
        """The worst that the files say. Without a shortage stalls are no sign of one, and are passed over:

        a service that thrashes inside a limit of its own stalls the machine's figure, and reading big files in a
        small group stalls that one, while what they wait for is only file pages being dropped.
        """
        strains = [CALM]
        if machine_short:
            strains.append(strain_of(read_stall(self.machine)))
        if self.group is not None and (machine_short or group_short):
            strains.append(strain_of(read_stall(self.group)))
        return max(strains, key=lambda strain: tuple(StrainLevel).index(strain.level))


def is_short(available: int, total: int) -> bool:
    """Whether less than a quarter is left, of a machine or of a limit."""
    return available * 4 < total


def strain_of(stall: Stall) -> Strain:
    """How bad a stall is."""
    if stall.full >= CRITICAL_FULL:
        return Strain(StrainLevel.CRITICAL, f"PSI full {int(stall.full)} %")
    if stall.some >= CRITICAL_SOME:
        return Strain(StrainLevel.CRITICAL, f"PSI some {int(stall.some)} %")
    if stall.some >= WARN_SOME:
        return Strain(StrainLevel.WARN, f"PSI some {int(stall.some)} %")
    return CALM
