"""The bench: ratios of rounds, aims, tables, and a client that tells an answer from what is none."""

import importlib.util
import sys
from pathlib import Path

import pytest
from daemon_process import daemon
from tiny_models import place_models

FOLDER = Path(__file__).resolve().parent.parent / "bench"


def module(name):
    """A module of the bench, under a name that no test's module has."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", FOLDER / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def figures():
    return module("figures")


def test_a_ratio_is_the_median_of_the_rounds_ratios(figures):
    figure = figures.Figure("speed", "ours", "tok/s", [10, 60, 30], "theirs", [20, 20, 20], figures.at_least(1.6))
    assert figure.ratios == [0.5, 3, 1.5]
    assert figure.value == 1.5
    assert not figure.is_met
    assert figure.cells() == [
        "speed",
        "ours",
        "30 tok/s",
        "theirs",
        "20",
        "**1.5** (0.5 to 3)",
        "≥ 1.6",
        "**no**",
    ]
    assert figure.as_json()["met"] is False


def test_a_value_without_a_base_is_its_median(figures):
    figure = figures.Figure("start", "ours", "s", [0.3, 0.9, 0.4], aim=figures.at_most(0.5))
    assert figure.value == 0.4
    assert figure.is_met
    assert figures.Figure("start", "ours", "s", [1]).is_met is None


def test_a_table_has_a_line_for_each_figure(figures):
    report = figures.Report(3)
    report.ratio("speed", "tok/s", {"a": [2, 2], "b": [1, 1]}, "a", "b")
    report.ratio("speed", "tok/s", {"a": [2, 2]}, "a", "not there")
    lines = figures.table(report.figures).splitlines()
    assert len(lines) == 3
    assert {line.count("|") for line in lines} == {9}


async def test_sides_are_measured_in_turn_after_a_round_that_only_warms_up(figures):
    calls = []

    def part(name):
        async def measure(number):
            calls.append((number, name))
            return number

        return measure

    samples = await figures.in_turn({"a": part("a"), "b": part("b")}, 2)
    assert samples == {"a": [1, 2], "b": [1, 2]}
    assert calls == [(0, "b"), (0, "a"), (1, "a"), (1, "b"), (2, "b"), (2, "a")]


async def test_answers_are_timed_and_counted_and_refusals_are_raised(tmp_path, micro_model, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    asking = module("asking")
    with daemon(tmp_path / "daemon", place_models(tmp_path / "models", {"m": micro_model})) as served:
        server = asking.Server("mlxd", served.url, "m")
        answer = await asking.ask(server, "Hello", 7)
        assert answer.tokens == 7
        assert answer.started < answer.moments[0] <= answer.ended
        assert 0 < answer.ttft <= answer.seconds
        with pytest.raises(RuntimeError, match="model_not_found"):
            await asking.ask(server.of("nobody"), "Hello", 7)
        async with asking.Streams(server, ["on and on"], 4000) as streams:
            begun = streams.answers[0].moments[-1]
            await asking.ask(server, "Hello", 2)
            assert streams.longest_gap(begun, begun + 1) > 0
        with pytest.raises(RuntimeError, match="short"):
            async with asking.Streams(server, ["on and on"], 20):
                await asking.ask(server, "Hello", 200)
