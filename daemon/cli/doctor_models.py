"""The models as `mlxd doctor` sees them: what the folders hold, what is broken, what can never fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlxd.daemon.catalog import Catalog, Survey
from mlxd.daemon.cli.doctor_checks import Check, Group
from mlxd.daemon.cli.doctor_config import config_problem
from mlxd.daemon.cli.doctor_memory import Room
from mlxd.daemon.config import located
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.engine_factory import load_need
from mlxd.daemon.settings import LoadedConfig, Settings
from mlxd.daemon.units import format_bytes
from mlxd.memory.files import BadFile
from mlxd.memory.limits import REMEDIES
from mlxd.registry.model_kind import Architectures, installed_packages, read_model_config
from mlxd.registry.spec import ModelSpec

GROUP = Group("models")
_SHOWN = 8


def model_checks(loaded: LoadedConfig, survey: Survey, room: Room | None) -> list[Check]:
    """All about the models; `room` is None where no limits hold, and then nothing is held against them."""
    catalog = survey.catalog
    checks = [_found(catalog)]
    if survey.problems:
        problems = located(ConfigError(*survey.problems), loaded).problems
        checks += [config_problem(GROUP, "names", problem) for problem in problems]
    checks += _broken(catalog)
    if room is not None:
        checks += _too_large(loaded.settings, catalog, room)
        checks += _pinned(loaded, catalog, room)
    return [*checks, *_odd(catalog)]


def _found(catalog: Catalog) -> Check:
    names = [spec.name for spec in catalog.specs]
    if not names:
        advice = (
            "get one with `mlxd pull REPO`, put a model's folder into one of models.dirs, or turn a GGUF file into one "
            "with `mlxd import`"
        )
        return GROUP.warning("found", "there is no model", advice, models=[])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    count = "1 model" if len(names) == 1 else f"{len(names)} models"
    found = f"{count}: {', '.join(names[:_SHOWN])}{more}"
    return GROUP.ok("found", found, models=names)


def _broken(catalog: Catalog) -> Iterator[Check]:
    """What cannot be loaded whatever the memory: bad files, and architectures that nobody here has."""
    architectures = Architectures() if installed_packages() else None
    for spec in catalog.specs:
        details = {"model": spec.name, "path": str(spec.path)}
        if spec.problem is not None:
            advice = f"copy or download {spec.path} again, or take it away"
            yield GROUP.problem("files", f"{spec.name} cannot be loaded: {spec.problem}", advice, **details)
            continue
        kind = _model_type(spec.path)
        if architectures is not None and not architectures.supports(kind):
            found = f"{spec.name} cannot be loaded: the installed mlx-lm has no model of type {kind!r}"
            advice = "`pip install --upgrade mlx-lm` may bring it; else take the model away"
            yield GROUP.problem("files", found, advice, **details)


def _model_type(folder: Path) -> object:
    try:
        return read_model_config(folder).get("model_type")
    except BadFile:  # it changed since it was found sound
        return None


def _too_large(settings: Settings, catalog: Catalog, room: Room) -> Iterator[Check]:
    """Models that do not fit even alone."""
    for spec in catalog.specs:
        need = load_need(spec, settings)
        if spec.problem is not None or need <= max(0, room.left):
            continue
        found = (
            f"{spec.name} can never fit: it needs {format_bytes(need)}, and {format_bytes(max(0, room.left))} are left "
            f"for models ({room.limits.soft_limit})"
        )
        advice = f"take a smaller or more quantised one, or {REMEDIES[room.limits.soft_limit]}"
        details = {"needed_bytes": need, "limit_bytes": room.left, "limit": room.limits.soft_limit}
        yield GROUP.problem("size", found, advice, model=spec.name, **details)


def _pinned(loaded: LoadedConfig, catalog: Catalog, room: Room) -> Iterator[Check]:
    """Pinned models that do not fit together, once one of them is in memory."""
    pinned = [spec for spec in catalog.specs if spec.pinned and _fits(loaded.settings, spec, room)]
    most = loaded.settings.residency.max_loaded
    need = sum(load_need(spec, loaded.settings) for spec in pinned)
    details = {"needed_bytes": need, "limit_bytes": room.left, "models": [spec.name for spec in pinned]}
    names = ", ".join(spec.name for spec in pinned)
    if need > room.left:
        found = f"the pinned models need {format_bytes(need)} together, and {format_bytes(room.left)} are left: {names}"
        yield GROUP.warning("pinned", found, "pin fewer of them; what is loaded last is refused", **details)
    elif most and len(pinned) > most:
        found = f"{len(pinned)} models are pinned, and residency.max_loaded is {most}: {names}"
        yield GROUP.warning("pinned", found, "pin fewer of them, or raise residency.max_loaded", **details)


def _fits(settings: Settings, spec: ModelSpec, room: Room) -> bool:
    return spec.problem is None and load_need(spec, settings) <= room.left


def _odd(catalog: Catalog) -> Iterator[Check]:
    """Sentences about folders and names, but for those about files that are in `_broken`."""
    broken = [spec.problem for spec in catalog.specs if spec.problem is not None]
    for note in catalog.notes:
        if not any(note.endswith(problem) for problem in broken):
            yield GROUP.warning("folders", note, "see to that folder, or take it out of the configuration")
    for conflict in catalog.names.conflicts:
        yield GROUP.warning("names", conflict, "rename one of them, or give it a name of its own with [[model]]")
