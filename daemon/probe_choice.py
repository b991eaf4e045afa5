"""What the environment decides besides the configuration: the memory probe of tests, the Hugging Face cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mlxd.memory.probe import MemoryProbe, SystemProbe
from mlxd.memory.scripted import FileProbe


def make_probe(environ: Mapping[str, str]) -> MemoryProbe:
    """The machine's probe, or one that reads `$MLXD_TEST_PROBE`, a file that a test writes."""
    path = environ.get("MLXD_TEST_PROBE")
    return FileProbe(Path(path)) if path else SystemProbe()


def count_workers(probe: MemoryProbe, counters: Callable[[], tuple[int, int, int]]) -> None:
    """Have the machine's probe add what MLX counts in other processes: active, cached and most active bytes."""
    if isinstance(probe, SystemProbe):
        probe.elsewhere = counters


def hf_cache_dir(environ: Mapping[str, str]) -> Path | None:
    """The hub cache as huggingface_hub finds it; None when there is no such folder."""
    if cache := environ.get("HF_HUB_CACHE"):
        path = Path(cache)
    elif home := environ.get("HF_HOME"):
        path = Path(home) / "hub"
    else:
        path = Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"
    path = path.expanduser()
    return path if path.is_dir() else None
