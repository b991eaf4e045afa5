"""From the name in a request to a model: names, aliases, presets, and what to say when none fits."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mlxd.registry.errors import RegistryError
from mlxd.registry.spec import ModelSpec

_LATEST = ":latest"
_SUGGESTIONS = 3
_LONGEST_NAME = 200


class UnknownModel(RegistryError):
    """No model has this name; `suggestions` are at most three similar ones. An empty name: none was asked for."""

    def __init__(self, name: str, suggestions: tuple[str, ...]) -> None:
        super().__init__(_unknown_message(name, suggestions))
        self.name = name
        self.suggestions = suggestions


class AmbiguousModel(RegistryError):
    """Several models fit this name; `candidates` are their full names."""

    def __init__(self, name: str, candidates: tuple[str, ...]) -> None:
        super().__init__(f"model {name!r} could be any of {', '.join(candidates)}; send one of these names")
        self.name = name
        self.candidates = candidates


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model that a name means, and the preset when it names one."""

    model: str
    preset: str | None = None

    @property
    def shown(self) -> str:
        """The name that means this."""
        return self.preset or self.model


@dataclass(frozen=True, slots=True)
class NameTable:
    """Every name a client may send. Built once for a set of models, never changed.

    A name that several models claim means a model of that name, else the first alias, else the first preset.
    `conflicts` are sentences about the claims that lost, and about spellings and short names that fit several.
    """

    exact: Mapping[str, Resolved]
    folded: Mapping[str, tuple[Resolved, ...]]
    leaves: Mapping[str, tuple[Resolved, ...]]
    conflicts: tuple[str, ...]

    @classmethod
    def build(cls, specs: Iterable[ModelSpec]) -> NameTable:
        """Collect the names of `specs`; earlier specs win."""
        exact: dict[str, Resolved] = {}
        conflicts: list[str] = []
        for name, meaning, what in _claims(tuple(specs)):
            winner = exact.setdefault(name, meaning)
            if winner != meaning:
                conflicts.append(f"{what} {name!r} of {meaning.model} has no effect: the name means {winner.shown}")
        leaves = {name: meaning for name, meaning in exact.items() if meaning.model == name and "/" in name}
        return cls(
            exact,
            _grouped((name.casefold(), meaning) for name, meaning in exact.items()),
            _grouped((_leaf(name), meaning) for name, meaning in leaves.items()),
            (*conflicts, *_case_notes(exact), *_leaf_notes(exact, leaves)),
        )

    def resolve(self, name: str | None, default: str) -> Resolved:
        """What a request's `name` means; `default` is used only when it names none ("" for no default).

        Raises UnknownModel and AmbiguousModel.
        """
        wanted = name or default
        if not wanted:
            raise UnknownModel("", ())
        found = self.find(wanted)
        if found is None:
            raise UnknownModel(wanted, self._similar(wanted))
        return found

    def find(self, wanted: str) -> Resolved | None:
        """The same for what may be no name of here, which is None. Raises AmbiguousModel."""
        found = self._find(wanted)
        if found is None and wanted.endswith(_LATEST):
            found = self._find(wanted.removesuffix(_LATEST))
        return found

    def takes(self, name: str) -> bool:
        """Whether a name means something here, be it one of several."""
        try:
            return self.find(name) is not None
        except AmbiguousModel:
            return True

    def _find(self, name: str) -> Resolved | None:
        # 1. exactly this name  2. the only one but for letter case  3. the only model with this last part
        if name in self.exact:
            return self.exact[name]
        for table in (self.folded, self.leaves):
            meanings = table.get(name.casefold(), ())
            if len(meanings) > 1:
                raise AmbiguousModel(name, tuple(sorted(meaning.shown for meaning in meanings)))
            if meanings:
                return meanings[0]
        return None

    def _similar(self, name: str) -> tuple[str, ...]:
        if len(name) > _LONGEST_NAME:
            return ()
        spoken: dict[str, str] = {}
        for known in self.exact:
            spoken.setdefault(known.casefold(), known)
            spoken.setdefault(known.rpartition("/")[2].casefold(), known)
        wanted = name.removesuffix(_LATEST).casefold()
        close = difflib.get_close_matches(wanted, spoken, n=2 * _SUGGESTIONS, cutoff=0.5)
        return tuple(dict.fromkeys(spoken[match] for match in close))[:_SUGGESTIONS]


def _claims(specs: tuple[ModelSpec, ...]) -> Iterable[tuple[str, Resolved, str]]:
    for spec in specs:
        yield spec.name, Resolved(spec.name), "the name"
    for spec in specs:
        for alias in spec.aliases:
            yield alias, Resolved(spec.name), "the alias"
    for spec in specs:
        for preset in spec.presets:
            yield preset, Resolved(spec.name, preset), "the preset"


def _case_notes(exact: Mapping[str, Resolved]) -> Iterator[str]:
    """Sentences about names that differ in letter case alone and mean different things."""
    for names in _alike((name.casefold(), name) for name in exact):
        if len({exact[name] for name in names}) > 1:
            yield f"{', '.join(names)} differ in letter case alone; clients must send one of them exactly"


def _leaf_notes(exact: Mapping[str, Resolved], leaves: Collection[str]) -> Iterator[str]:
    """Sentences about last parts of names, `leaves`, that are not enough to name their model."""
    taken = {name.casefold(): name for name in exact if name not in leaves}
    for names in _alike((_leaf(name), name) for name in leaves):
        short = taken.get(_leaf(names[0]))
        if short is None and len(names) > 1:
            last = names[0].rpartition("/")[2]
            yield f"{last} alone is ambiguous ({', '.join(names)}); clients must send the full name"
        others = [name for name in names if short is not None and exact[short].model != name]
        if short is not None and others:
            yield f"{short} means {_told(short, exact[short])}, not {', '.join(others)}"


def _told(name: str, meaning: Resolved) -> str:
    return "the model of exactly that name" if meaning == Resolved(name) else f"{meaning.model}, of which it is a name"


def _leaf(name: str) -> str:
    return name.rpartition("/")[2].casefold()


def _alike(pairs: Iterable[tuple[str, str]]) -> Iterable[list[str]]:
    """The second parts of pairs that have the same first part."""
    groups: dict[str, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups.values()


def _grouped(pairs: Iterable[tuple[str, Resolved]]) -> dict[str, tuple[Resolved, ...]]:
    groups: dict[str, tuple[Resolved, ...]] = {}
    for key, meaning in pairs:
        if meaning not in groups.get(key, ()):
            groups[key] = (*groups.get(key, ()), meaning)
    return groups


def _unknown_message(name: str, suggestions: tuple[str, ...]) -> str:
    if not name:
        return "the request names no model and models.default is not set; send one of the names in GET /v1/models"
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}…"
    if suggestions:
        return f"there is no model {name!r}; did you mean {' or '.join(suggestions)}?"
    return f"there is no model {name!r}; `mlxd list` and GET /v1/models show what the folders of models.dirs hold"
