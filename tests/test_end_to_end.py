"""The shipped commands against a real daemon with a model that speaks English."""

import json
import os
import subprocess

import pytest
from daemon_process import MLXD, Api, daemon

QUESTION = "What is the capital of France?"


@pytest.fixture
def speaking(models_dir, smollm2, tiny_model):
    return models_dir({"smollm2": smollm2, "tiny": tiny_model})


def command(url: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "MLXD_URL": url}
    return subprocess.run(
        [MLXD, *arguments], input=stdin, capture_output=True, text=True, env=environ, timeout=120, check=False
    )


async def test_a_real_model_answers_in_english_on_every_path(tmp_path, speaking):
    with daemon(tmp_path / "d", speaking) as running:
        async with Api(running.url) as api:
            said = await api.text("smollm2", QUESTION, max_tokens=20)
            assert "Paris" in said
            body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}
            status, completion = await api.call("POST", "/v1/completions", body)
            assert status == 200
            assert completion["choices"][0]["text"].startswith(" Paris")
        run = command(running.url, "run", "smollm2", QUESTION, "--temperature", "0", "--max-tokens", "20")
        assert (run.returncode, run.stdout.strip()) == (0, said.strip()), run.stderr
        piped = command(running.url, "run", "smollm2", "--temperature", "0", "--max-tokens", "20", stdin=QUESTION)
        assert piped.stdout == run.stdout


def test_the_operators_commands_agree_with_the_daemon(tmp_path, speaking):
    with daemon(tmp_path / "d", speaking) as running:
        url = running.url
        known = json.loads(command(url, "list", "--json").stdout)
        assert [model["id"] for model in known["data"]] == ["smollm2", "tiny"]
        loaded = command(url, "load", "tiny", "--pin", "--ttl", "5m")
        assert loaded.returncode == 0, loaded.stderr
        shown = json.loads(command(url, "show", "tiny", "--json").stdout)
        assert (shown["state"], shown["pinned"], shown["ttl_s"], shown["unload_at"]) == ("ready", True, 300.0, None)
        assert "tiny" in command(url, "ps").stdout
        assert command(url, "unpin", "tiny").returncode == 0
        assert json.loads(command(url, "show", "tiny", "--json").stdout)["unload_at"] is not None
        status = command(url, "status")
        assert (status.returncode, "ready" in status.stdout) == (0, True)
        freed = command(url, "unload", "tiny", "--mode", "force")
        assert (freed.returncode, "MiB" in freed.stdout) == (0, True)
        missing = command(url, "run", "tyni", "hello")
        assert missing.returncode == 1
        assert "tiny" in missing.stderr
        assert "Traceback" not in missing.stderr
    assert command(url, "ps").returncode == 69
