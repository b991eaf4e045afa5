"""A probe whose readings come from a file, so that a test can drive a running daemon from outside."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import msgspec

from mlxd.memory.footprint import Footprint
from mlxd.memory.outside import Strain, StrainLevel
from mlxd.memory.probe import MemoryProbe, SystemProbe

Size = Annotated[int, msgspec.Meta(ge=0)]


class ProbeFileError(ValueError):
    """The probe file is missing, is not JSON or holds something that is no footprint."""


class ProbeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a Footprint in bytes, and the two GPU limits; a field left out is measured.

    `strain` is one of "none", "warn" and "critical". A machine with a total of its own and no word about what is
    available has all of it available that is not in `bytes`.
    """

    bytes: Size | msgspec.UnsetType = msgspec.UNSET
    mlx_active: Size | msgspec.UnsetType = msgspec.UNSET
    mlx_cache: Size | msgspec.UnsetType = msgspec.UNSET
    machine_total: Size | msgspec.UnsetType = msgspec.UNSET
    machine_available: Size | msgspec.UnsetType = msgspec.UNSET
    cgroup_limit: Size | msgspec.UnsetType | None = msgspec.UNSET
    mlx_peak: Size | msgspec.UnsetType = msgspec.UNSET
    cgroup_available: Size | msgspec.UnsetType | None = msgspec.UNSET
    strain: StrainLevel | msgspec.UnsetType = msgspec.UNSET
    metal_limit: Size | msgspec.UnsetType | None = msgspec.UNSET
    wired_limit: Size | msgspec.UnsetType | None = msgspec.UNSET


class FileProbe:
    """Reads `path` on every sample; whoever writes it should write a new file and rename it over the old one."""

    def __init__(self, path: Path, system: MemoryProbe | None = None) -> None:
        self._path = path
        self._system = SystemProbe() if system is None else system

    def sample(self) -> Footprint:
        """The file's fields over the system's. Raises ProbeFileError for a file that cannot be used."""
        script = self._read()
        fields = {field.name for field in dataclasses.fields(Footprint)} - {"strain"}
        values = msgspec.structs.asdict(script).items()
        given = {name: value for name, value in values if name in fields and value is not msgspec.UNSET}
        footprint = dataclasses.replace(self._system.sample(), **given)
        if "machine_total" in given and "machine_available" not in given:
            alone = max(0, footprint.machine_total - footprint.bytes)
            footprint = dataclasses.replace(footprint, machine_available=alone)
        if isinstance(script.strain, msgspec.UnsetType):
            return footprint
        return dataclasses.replace(footprint, strain=_told(script.strain))

    def metal_limit(self) -> int | None:
        """The file's `metal_limit`, else the system's. Raises ProbeFileError for a file that cannot be used."""
        limit = self._read().metal_limit
        return self._system.metal_limit() if isinstance(limit, msgspec.UnsetType) else limit

    def wired_limit(self) -> int | None:
        """The file's `wired_limit`, else the system's. Raises ProbeFileError for a file that cannot be used."""
        limit = self._read().wired_limit
        return self._system.wired_limit() if isinstance(limit, msgspec.UnsetType) else limit

    def _read(self) -> ProbeFile:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=ProbeFile)
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise ProbeFileError(f"memory probe file {self._path}: {error}") from error


def _told(level: StrainLevel) -> Strain:
    return Strain(level, "" if level is StrainLevel.NONE else f"the probe file says {level}")
