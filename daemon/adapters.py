"""Lists the LoRA adapters of `[[model]]` entries, each as a model of its own."""

from __future__ import annotations

from dataclasses import replace

from mlxd.daemon.settings import ModelSettings, Settings
from mlxd.memory.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, inspect_adapter
from mlxd.registry.spec import ModelSpec


def add_adapters(settings: Settings, specs: dict[str, ModelSpec], notes: list[str]) -> None:
    """Add the adapters of all entries whose model is in `specs`; notes are sentences about what is odd on disk.

    An adapter's name comes before that of a model that was found on disk, as an entry's does.
    """
    bases = dict(specs)
    for entry in settings.model:
        for name in entry.adapters if entry.name in bases else ():
            if name in bases:
                notes.append(f"{name} means the adapter of {entry.name}; the model in {bases[name].path} is not listed")
            specs[name] = _adapter_spec(name, bases[entry.name], entry, notes)


def _adapter_spec(name: str, base: ModelSpec, entry: ModelSettings, notes: list[str]) -> ModelSpec:
    folder = entry.adapters[name]
    found = inspect_adapter(folder)
    problem = None
    if found.problem is not None:
        problem = (
            f"adapter {folder}: {found.problem}; mlx-lm's adapters have {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS} there"
        )
        notes.append(f"{name} cannot be loaded: {problem}")
    return replace(
        base,
        name=name,
        aliases=(),
        presets=(),
        pinned=False,
        weight_bytes=base.weight_bytes + found.weight_bytes,
        problem=base.problem or problem,
        adapter=folder,
    )
