"""Faults for a real daemon: a memory reading that a test writes, and loads that do not get on."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mlxd.daemon.engine_hosts import WORKER_BASE

# `make test-process` runs daemons with this in the environment.
ISOLATION = "MLXD_ENGINE__ISOLATION"
# For a daemon whose faults are in its own process, or whose scripted memory has no room for another.
IN_THREADS = {ISOLATION: "thread"}

# Models of 11.5 MB each: the ceiling is moved by a scripted probe so that two of them fit.
WEIGHT_BYTES = 12_600_000
# What a load is planned with for a process of the model's own.
PROCESS_BYTES = WORKER_BASE if os.environ.get(ISOLATION) == "process" else 0
MODEL_BYTES = WEIGHT_BYTES + PROCESS_BYTES
# Bytes beside them, for what is asked of them.
SLACK = 6_300_000


def scripted_probe(folder: Path, used: int = 100_000_000) -> dict[str, str]:
    """A probe that reads so many bytes used, whatever the daemon really uses."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "probe.json"
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"bytes": used, "mlx_active": 0, "mlx_cache": 0}))
    new.replace(file)
    return {"MLXD_TEST_PROBE": str(file)}


def room_bytes(count: int, each: int = MODEL_BYTES) -> int:
    return 100_000_000 + count * each + SLACK


def room_for(count: int, each: int = MODEL_BYTES) -> str:
    return f'[memory]\nceiling = {room_bytes(count, each)}\nsoft = "100%"\n'


def hold_load(model: Path) -> Path:
    """Make a load of this model folder wait until `let_go`."""
    held = model / "generation_config.json"
    held.unlink(missing_ok=True)
    os.mkfifo(held)  # whoever opens it waits for a writer
    return held


def let_go(fifo: Path) -> None:
    """Let the reader of a FIFO go on, and leave a plain file for the next one."""
    with fifo.open("w") as writer:
        plain = fifo.with_suffix(".plain")
        plain.write_text("{}")
        plain.replace(fifo)
        writer.write("{}")
