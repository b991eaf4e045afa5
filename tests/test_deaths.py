"""What is kept of an engine's deaths, and how it is told."""

import pytest

from mlxd.registry.deaths import QUARANTINE, STABLE, Deaths, describe, one_more, outlived, told


def died(*times: tuple[str, ...], **facts: object) -> Deaths:
    """One death after the other, each with its suspects."""
    deaths = None
    for now, suspects in enumerate(times):
        deaths = one_more(deaths, facts, suspects, float(now))
    assert deaths is not None
    return deaths


def test_each_suspect_has_the_number_of_deaths_that_it_was_there_for():
    deaths = died(("a", "b"), ("b", "c"), ("b",))
    assert deaths.count == 3
    assert dict(deaths.suspects) == {"a": 1, "b": 3, "c": 1}


def test_a_request_that_is_there_twice_counts_once_for_a_death():
    assert died(("a", "a")).suspects == (("a", 1),)


def test_the_most_suspicious_are_first_and_of_others_the_latest():
    deaths = died(("a", "b"), ("b", "c"), ("d",))
    assert [name for name, _ in deaths.suspects] == ["b", "d", "c", "a"]


def test_no_more_suspects_are_kept_than_are_of_use():
    crowd = [tuple(f"{death}-{number}" for number in range(100)) for death in range(10)]
    deaths = died(*((*each, "poison") for each in crowd))
    assert len(deaths.suspects) == 256
    assert deaths.suspects[0] == ("poison", 10)
    assert dict(deaths.suspects).keys() >= {*crowd[-1]}
    assert len(told(deaths)["suspects"]) == 16


def test_deaths_are_forgotten_once_the_model_was_in_memory_for_long_enough():
    deaths = died((), ())
    assert outlived(deaths, 10.0, 10.0 + STABLE) is None
    assert outlived(deaths, 10.0, 9.0 + STABLE).count == 2
    assert outlived(None, 10.0, 10.0 + STABLE) is None


def test_several_loads_without_a_death_count_together():
    deaths = outlived(died(()), 10.0, 10.0 + STABLE / 2)
    assert deaths is not None
    assert outlived(deaths, 5000.0, 5000.0 + STABLE / 2) is None


def test_time_in_memory_before_a_death_is_no_time_without_one():
    deaths = outlived(died(()), 10.0, 10.0 + STABLE / 2)
    deaths = one_more(deaths, {}, (), 2000.0)
    assert outlived(deaths, 1000.0, 2000.0 + STABLE / 2) is not None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "its process ended"),
        ({"signal": "SIGKILL", "exit_code": None}, "its process ended; killed by SIGKILL"),
        ({"exit_code": 3}, "its process ended; exit code 3"),
        ({"exit_code": 0}, "its process ended; exit code 0"),
        ({"exit_code": None, "signal": None, "step_age_s": None}, "its process ended"),
        (
            {"signal": "SIGSEGV", "step_age_s": 2.04},
            "its process ended; killed by SIGSEGV; 2 s after its last sign of life",
        ),
        ({"step_age_s": 0.01}, "its process ended"),
        ({"pid": 5}, "its process ended"),
    ],
)
def test_a_death_is_told_in_words(facts, words):
    assert describe("m", died((), **facts), "its process ended") == words


def test_what_was_said_already_is_not_told_again():
    said = "the worker was killed by SIGKILL"
    assert describe("m", died((), signal="SIGKILL"), said) == said


def test_it_is_told_how_often_and_who_is_suspected():
    deaths = died(("a", "b"), ("b", "c", "d", "e"))
    said = describe("m", deaths, "x")
    assert said == (
        "x; died 2 times in a row; suspect requests: b (in 2 of 2), c (in 1 of 2), d (in 1 of 2) and 2 more"
    )


def test_in_quarantine_it_is_told_what_an_operator_can_do():
    assert "mlxd load" not in describe("m", died(*[()] * (QUARANTINE - 1)), "x")
    assert "`mlxd load m`" in describe("m", died(*[()] * QUARANTINE), "x")
