"""What a reload changes: keys and models, told before and after. Pure functions over two states of the daemon."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mlxd.daemon.config_effect import Applies, applies
from mlxd.daemon.config_errors import dotted
from mlxd.daemon.config_show import paths, to_public
from mlxd.daemon.live import InEffect


class KeyChange(Struct, frozen=True):
    """A key with its values in the form of the file, None where it is not set; `applies` says when it counts."""

    key: str
    old: Any
    new: Any
    applies: Applies


class ModelChanges(Struct, frozen=True):
    """Names of models. Those in `reloaded` are drained and loaded again by the next request; `changed` ones go on."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reloaded: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class ReloadDiff(Struct, frozen=True):
    """Everything that differs. `notes` are sentences that hold after it and did not before."""

    keys: tuple[KeyChange, ...] = ()
    models: ModelChanges = ModelChanges()
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not self.keys and self.models == ModelChanges()

    @property
    def needs_restart(self) -> bool:
        """Whether some key counts only after a restart."""
        return any(change.applies is Applies.RESTART for change in self.keys)


def reload_diff(old: InEffect, new: InEffect) -> ReloadDiff:
    """What changes from `old` to `new`; `new` has the settings as they are written, restart or not."""
    known = set(old.catalog.remarks)
    notes = tuple(note for note in new.catalog.remarks if note not in known)
    return ReloadDiff(_keys(old, new), _models(old, new), notes)


def _keys(old: InEffect, new: InEffect) -> tuple[KeyChange, ...]:
    before, after = dict(paths(to_public(old.settings))), dict(paths(to_public(new.settings)))
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return tuple(KeyChange(dotted(path), before.get(path), after.get(path), applies(path)) for path in changed)


def _models(old: InEffect, new: InEffect) -> ModelChanges:
    before = {spec.name: spec for spec in old.catalog.specs}
    after = {spec.name: spec for spec in new.catalog.specs}
    both = sorted(before.keys() & after.keys())
    reloaded = tuple(name for name in both if before[name].load_key != after[name].load_key)
    changed = tuple(
        name
        for name in both
        if name not in reloaded and (before[name] != after[name] or _own_keys(old, name) != _own_keys(new, name))
    )
    return ModelChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        reloaded=reloaded,
        changed=changed,
    )


def _own_keys(state: InEffect, name: str) -> object:
    """What the entry of a model says of it; of an adapter only what it has from there."""
    entry = state.settings.model_for(name)
    return entry if entry is None or entry.name == name else (entry.engine, entry.sampling, entry.ttl)
