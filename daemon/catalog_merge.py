"""Lays what the folders hold now over what is known, without touching a model that is in memory: a pure function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlxd.daemon.catalog import Catalog
from mlxd.registry.names import NameTable
from mlxd.registry.spec import ModelSpec

Settled = Callable[[Path], bool]
"""Whether a folder, or its absence, is the same as one look before."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The catalog to go on with. `deferred` are models in memory whose change waits until they have left it."""

    catalog: Catalog
    deferred: frozenset[str]


def merge(
    known: Catalog, fresh: Catalog, *, resident: Collection[str], troubled: Collection[str], settled: Settled
) -> Merged:
    """What is known, changed as far as it may be now. `troubled` names stay as they are.

    For each model that is new, different or gone:

    1. In memory: it stays as it is, and is looked at again.
    2. Its entry cannot be followed, or its files are still changing: it stays as it is, and a new one stays out.
    3. Else it is what the folders say.
    """
    old = {spec.name: spec for spec in known.specs}
    new = {spec.name: spec for spec in fresh.specs}
    specs: list[ModelSpec] = []
    kept: list[ModelSpec] = []
    deferred: set[str] = set()
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is not None and after is not None and before.load_key == after.load_key:
            specs.append(after)
        elif before is not None and name in resident:
            deferred.add(name)
            kept.append(before)
        elif name in troubled or not all(map(settled, {*_folders(before), *_folders(after)})):
            kept += [before] if before is not None else []
        elif after is not None:
            specs.append(after)
    every = tuple(sorted([*specs, *kept], key=lambda spec: spec.name))
    basis = fresh.basis.keeping(known.basis, *_unchanged(known, fresh, kept, settled))
    return Merged(Catalog(every, NameTable.build(every), fresh.notes, basis), frozenset(deferred))


def _unchanged(
    known: Catalog, fresh: Catalog, kept: Collection[ModelSpec], settled: Settled
) -> tuple[set[Path], set[Path]]:
    """The folders of models that stay as they are, and those that have to be looked at again."""
    read = {path for spec in kept for path in _folders(spec)}
    seen = known.basis.seen.stamps.keys() | fresh.basis.seen.stamps.keys()
    return read, {path for path in seen if not settled(path)}


def _folders(spec: ModelSpec | None) -> Iterator[Path]:
    if spec is not None:
        yield from (path for path in (spec.path, spec.adapter, spec.draft) if path is not None)
