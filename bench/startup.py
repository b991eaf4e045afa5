#!/usr/bin/env python3
"""How long it takes from the command to the ready line, and to print help; seconds, median of some runs.

usage: startup.py [--runs 7] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MLXD = str(Path(sys.executable).parent / "mlxd")


def ready(folder: Path) -> float:
    """Seconds until `mlxd serve` prints its ready line; the BLAS restart, where there is one, included."""
    environ = {**os.environ, "MLXD_SERVER__STATE_DIR": str(folder / "state"), "MLXD_MODELS__HF_CACHE": "false"}
    for name in ("LD_PRELOAD", "PYTHONDONTWRITEBYTECODE"):  # as a user runs it: no preload, compiled files kept
        environ.pop(name, None)
    command = [MLXD, "serve", "--port", "0", "--models-dir", str(folder), "--log-level", "error"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
        assert line.startswith("mlxd ready"), line
        process.send_signal(signal.SIGTERM)
    return seconds


def help_text() -> float:
    """Seconds that `mlxd --help` takes."""
    started = time.perf_counter()
    subprocess.run([MLXD, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = {
            "ready_s": [ready(Path(folder)) for _ in range(arguments.runs)],
            "help_s": [help_text() for _ in range(arguments.runs)],
        }
    results = {name: round(statistics.median(values), 3) for name, values in figures.items()}
    if arguments.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:8} {value:6.3f}  (of {arguments.runs} runs {min(figures[name]):.3f} to {max(figures[name]):.3f})")


if __name__ == "__main__":
    main()
