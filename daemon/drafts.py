"""Gives models the drafts of their `[[model]]` entries, for speculative decoding."""

from __future__ import annotations

import os
from dataclasses import replace

from mlxd.daemon.config_errors import Problem, dotted
from mlxd.daemon.config_rules import Unexpected
from mlxd.daemon.settings import Settings
from mlxd.memory.estimates import ModelEstimate
from mlxd.registry.names import AmbiguousModel, NameTable, UnknownModel
from mlxd.registry.spec import ModelKind, ModelSpec

_REMEDY = "name a smaller text model with the same vocabulary"


def add_drafts(settings: Settings, specs: dict[str, ModelSpec]) -> list[Problem]:
    """Lay drafts over the specs of the entries that name one and of their adapters; what is wrong with the others."""
    alone = dict(specs)
    names = NameTable.build(alone.values())
    problems: list[Problem] = []
    for entry in settings.model:
        wanted = settings.engine_for(entry.name).draft
        if wanted is None or entry.name not in alone:
            continue
        try:
            draft = _draft(wanted, alone[entry.name], names, alone)
        except Unexpected as error:
            problems.append(Problem(str(error), dotted(("model", entry.name, "engine", "draft"))))
            continue
        for name in (entry.name, *entry.adapters):
            specs[name] = _with_draft(alone[name], draft)
    return problems


def estimate_with_draft(model: ModelEstimate, draft: ModelEstimate, spec: ModelSpec) -> ModelEstimate:
    """What the files of a model and its draft say together. They read a prompt one after the other."""
    widest = max(model, draft, key=lambda estimate: estimate.attention_heads * estimate.itemsize)
    return replace(
        model,
        weight_bytes=spec.weight_bytes,
        kv_bytes_per_token=spec.kv_bytes_per_token,
        attention_heads=widest.attention_heads,
        itemsize=widest.itemsize,
    )


def _draft(wanted: str, model: ModelSpec, names: NameTable, specs: dict[str, ModelSpec]) -> ModelSpec:
    """The model that is meant. Raises Unexpected when there is none or it cannot be a draft of `model`."""
    meaning = names.exact.get(wanted)
    if meaning is None:
        raise Unexpected(f'expected the name of a model, but there is no "{wanted}"; {_hint(wanted, names)}')
    if meaning.preset is not None:
        raise Unexpected(f'expected a model, but "{wanted}" is a preset; name its model, {meaning.model}')
    draft = specs[meaning.model]
    if draft.adapter is not None:
        raise Unexpected(f'expected a model, but "{wanted}" is an adapter; name a model that is one without it')
    if model.kind is not ModelKind.TEXT:
        raise Unexpected(f"expected no draft, because {model.name} is no text model ({model.kind}); take this key out")
    if draft.kind is not ModelKind.TEXT:
        raise Unexpected(f'expected a text model, but "{wanted}" is another kind ({draft.kind}); {_REMEDY}')
    if os.path.realpath(draft.path) == os.path.realpath(model.path):
        raise Unexpected(f'expected another model than the one that it helps, got "{wanted}"; {_REMEDY}')
    return draft


def _hint(wanted: str, names: NameTable) -> str:
    similar: tuple[str, ...]
    try:
        similar = (names.resolve(wanted, "").shown,)
    except AmbiguousModel as error:
        similar = error.candidates
    except UnknownModel as error:
        similar = error.suggestions
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    return "put its folder into one of models.dirs, or give it a [[model]] entry with path or repo"


def _with_draft(spec: ModelSpec, draft: ModelSpec) -> ModelSpec:
    problem = f"draft {draft.name}: {draft.problem}" if draft.problem is not None else None
    return replace(
        spec,
        draft=draft.path,
        weight_bytes=spec.weight_bytes + draft.weight_bytes,
        kv_bytes_per_token=spec.kv_bytes_per_token + draft.kv_bytes_per_token,
        problem=spec.problem or problem,
    )
