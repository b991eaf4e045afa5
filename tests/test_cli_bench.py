"""`mlxd bench` against a real daemon: figures that agree with what was done, and errors of single models."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from cli_process import mlxd
from daemon_process import Api, daemon
from fake_daemon import DONE, event, model
from tiny_models import place_models

from mlxd.daemon.cli.bench_runs import Bench, Plan, Swap
from mlxd.daemon.cli.failures import CommandFailed

ANSWER = {"usage": {"prompt_tokens": 9, "completion_tokens": 2}, "mlxd": {"prefill_s": 0.1}}
QUICK = ("--tokens", "8", "--prompt-tokens", "32", "--rounds", "2", "--streams", "1", "--streams", "2")


class Failing:
    """A client whose question of this number is refused; those that come with others before it get no answer."""

    url = "http://daemon"

    def __init__(self, number: int, *, answered: int) -> None:
        self.number, self.answered = number, answered
        self.asked = self.open = 0

    async def get(self, path):
        return model("a", "ready")

    @asynccontextmanager
    async def stream(self, path, body):
        self.asked += 1
        number = self.asked
        if number == self.number:
            raise CommandFailed("the queue is full")
        self.open += 1
        try:
            yield self._pieces(number)
        finally:
            self.open -= 1

    async def _pieces(self, number):
        if number > self.answered:
            await asyncio.Event().wait()
        yield event(ANSWER) + DONE


@pytest.fixture(scope="module")
def served(tmp_path_factory, micro_model):
    folder = tmp_path_factory.mktemp("bench")
    models = place_models(folder / "models", {"a": micro_model, "b": micro_model, "broken": micro_model})
    (models / "broken" / "model.safetensors").write_bytes(b"no weights")
    with daemon(folder / "d", models, "[residency]\nmax_loaded = 1\n") as running:
        yield running


@pytest.fixture
def bench(served, tmp_path):
    def bench(*args: str):
        return mlxd("bench", *args, home=tmp_path, MLXD_URL=served.url)

    return bench


def test_models_are_measured_one_after_the_other_and_swapped(bench):
    done = bench("a", "b", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    for each, name in zip(answer["data"], ("a", "b"), strict=True):
        assert (each["model"], each["error"]) == (name, None)
        assert each["load_s"] > 0
        assert 16 <= each["prompt_tokens"] <= 200
        assert 0 < each["ttft_s"] < 10
        assert set(each["streams"]) == {"1", "2"}
        assert min(*each["streams"].values(), each["prompt_tps"], each["resident_bytes"]) > 0
    assert [(swap["model"], swap["before"], swap["evicted"]) for swap in answer["swaps"]] == [
        ("b", "a", True),
        ("a", "b", True),
    ]


async def test_without_a_name_it_is_those_in_memory(bench, served):
    async with Api(served.url) as api:
        await api.call("POST", "/admin/models/b/load", {})
    done = bench(*QUICK)
    assert done.returncode == 0, done.stderr
    head, row = done.stdout.decode().splitlines()[:2]
    assert head.split() == ["MODEL", "LOAD", "FIRST", "TOKEN", "PROMPT", "x1", "x2", "MEMORY"]
    assert row.split()[:2] == ["b", "-"]
    async with Api(served.url) as api:
        await api.call("POST", "/admin/models/b/unload", {})
    done = bench(*QUICK)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"no model is in memory" in done.stderr


def test_a_model_that_fails_does_not_keep_the_others_from_being_measured(bench):
    done = bench("broken", "a", *QUICK, "--json")
    assert done.returncode == 1
    broken, good = json.loads(done.stdout)["data"]
    assert "broken" in broken["model"]
    assert broken["error"]
    assert good["error"] is None
    done = bench("nobody", "a", *QUICK)
    assert done.returncode == 1
    assert b"nobody" in done.stderr
    assert done.stdout.decode().splitlines()[1].startswith("a ")


def test_without_a_daemon_it_says_so(tmp_path):
    assert mlxd("bench", "a", home=tmp_path, MLXD_URL="http://127.0.0.1:9").returncode == 69


async def test_of_answers_at_once_none_goes_on_when_one_fails():
    client = Failing(5, answered=2)
    with pytest.raises(CommandFailed, match="queue is full"):
        await Bench(client, Plan(16, 2, (3,), 1)).measure("a")
    assert (client.asked, client.open) == (5, 0)


async def test_a_swap_that_fails_is_told_beside_what_was_measured():
    swap = await Bench(Failing(2, answered=1), Plan(16, 2, (1,), 1)).swap("b", "a")
    assert swap == Swap("b", "a", None, None, "the queue is full")
