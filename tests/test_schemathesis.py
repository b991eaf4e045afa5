"""schemathesis makes good and bad requests of /openapi.json, and holds a real daemon's answers against it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_process import daemon

SCHEMATHESIS = str(Path(sys.executable).parent / "schemathesis")
SEED = "1"
# Short answers, and short waits; whatever is unloaded on the way is loaded again when it is asked for.
CONFIG = """
[residency]
queue_timeout = "5s"

[[model]]
name = "qwen"
sampling = { max_tokens = 2 }
engine = { context_length = 64, max_running = 4 }
"""
# A body may be valid and name a model that there is not, or not fit in the context. An id may hold slashes, so that
# what ends in "/load" is a model's path, too, with the methods of both.
UNCHECKED = "positive_data_acceptance,allow_header_conformance"
# Their streams do not end by themselves.
ENDLESS = ("/admin/events", "/admin/logs")


def run(url: str, folder: Path, examples: int) -> subprocess.CompletedProcess[str]:
    """Every call of the API at `url`, with so many bodies each."""
    command = [SCHEMATHESIS, "run", f"{url}/openapi.json", "--exclude-checks", UNCHECKED]
    command += [part for path in ENDLESS for part in ("--exclude-path", path)]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(examples), "--seed", SEED]
    command += ["--request-timeout", "30", "--warnings", "off", "--suppress-health-check", "all", "--no-color"]
    variables = {**os.environ, "LD_PRELOAD": ""}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("examples", [2, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_no_answer_is_a_server_error_or_differs_from_the_document(tmp_path, micro_model, examples):
    models = tmp_path / "models"
    models.mkdir()
    (models / "qwen").symlink_to(micro_model)
    with daemon(tmp_path / "daemon", models, CONFIG) as running:
        done = run(running.url, tmp_path, examples)
    assert done.returncode == 0, done.stdout
