"""What a run of the daemon leaves behind for the next one, and which models are suspect after an unclean end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

VERSION = 1
"""Of the form of a record; one of a later version is not read."""

MAX_SUSPECTS = 256
"""Models that are remembered; of more the latest."""

Count = Annotated[int, Meta(ge=1)]
Part = Literal["loading", "at_work"]


class Suspect(Struct, frozen=True):
    """A model that was loading or at work when a run ended uncleanly.

    `ends` counts such ends since it last served well. The rest is of the last one: what the model was at, with the
    fingerprints of its requests, when that was written down (seconds since the epoch), whether the machine went down
    with it (None when that is not known), and whether a start now has to do without the model.
    """

    ends: Count
    was: Part
    at: float
    machine_restarted: bool | None
    fingerprints: tuple[str, ...] = ()
    skip: bool = True


class ResidentModel(Struct, frozen=True):
    """A model that is ready, and the kind of its files."""

    name: str
    kind: str


class RunRecord(Struct, frozen=True):
    """One run as it is known on the disk, `at` seconds since the epoch. `boot` names the start of the machine.

    `loading` and `at_work` are empty once it has `ended` in order; `at_work` has fingerprints of requests. `resident`
    are the models that were ready, the last used first.
    """

    version: Count
    boot: str | None
    at: float
    ended: bool = False
    loading: tuple[str, ...] = ()
    at_work: Mapping[str, tuple[str, ...]] = {}
    resident: tuple[ResidentModel, ...] = ()
    suspects: Mapping[str, Suspect] = {}

    @property
    def involved(self) -> dict[str, Part]:
        """What each model was at when the run ended uncleanly."""
        if self.ended:
            return {}
        return {**dict.fromkeys(self.at_work, "at_work"), **dict.fromkeys(self.loading, "loading")}


def machine_restarted(last: RunRecord, boot: str | None) -> bool | None:
    """Whether the machine went down since that run, None when it is not known."""
    return None if boot is None or last.boot is None else boot != last.boot


def suspects_after(last: RunRecord, boot: str | None) -> dict[str, Suspect]:
    """The suspects of a start after the run `last`, by name.

    1. A model that was loading is done without. So is one that was at work, unless only the daemon was killed: that may
       be an operator, or an end of memory, the first time.
    2. At the second such end without having served well in between it is done without in any case, and until it has.
    3. One that had nothing to do with this end is loaded again. It is remembered for one more run, for 2.
    """
    restarted = machine_restarted(last, boot)
    involved = last.involved
    suspects = {}
    for name, part in involved.items():
        before = last.suspects.get(name)
        ends = before.ends + 1 if before is not None else 1
        skip = part == "loading" or restarted is not False or ends > 1
        suspects[name] = Suspect(ends, part, last.at, restarted, last.at_work.get(name, ()), skip)
    for name, before in last.suspects.items():
        if name in involved:
            continue
        if before.ends > 1:
            suspects[name] = before
        elif before.skip:
            suspects[name] = structs.replace(before, skip=False)
    latest = sorted(suspects, key=lambda name: suspects[name].at)[-MAX_SUSPECTS:]
    return {name: suspects[name] for name in latest}
