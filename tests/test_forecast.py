"""Waits are told from what loads and answers took."""

import pytest
from planning import World, world

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelWaitTimeout, ResidencyQueueFull
from mlxd.registry.forecast import Forecast
from mlxd.registry.pace import averaged, load_seconds, reload_seconds
from mlxd.registry.residency import Policy, Resident


def test_an_average_begins_with_the_first_measurement_and_moves_to_the_newest():
    assert averaged(None, 10.0) == 10.0
    assert averaged(10.0, 20.0) == pytest.approx(13.0)


def test_nothing_is_told_before_a_load_was_measured():
    w = world(Resident("a", 40))
    assert load_seconds(w.state, w.model("a")) is None
    assert Forecast(w.state, w.now).until_ready("a") is None
    w.want("a")
    assert Forecast(w.state, w.now).until_ready("a") is None


def test_before_a_load_was_measured_models_are_compared_by_size():
    w = world(Resident("a", 40), Resident("b", 80))
    assert reload_seconds(w.state, w.model("a")) < reload_seconds(w.state, w.model("b"))


def test_a_model_takes_as_long_as_its_last_load_and_others_as_long_as_their_size_says():
    w = world(Resident("a", 40), Resident("b", 80), limit=200)
    w.loads_in("a", 4.0)
    assert load_seconds(w.state, w.model("a")) == 4.0
    assert load_seconds(w.state, w.model("b")) == 8.0


def test_a_model_without_weights_says_nothing_of_the_pace():
    w = world(Resident("a", 0), Resident("b", 80))
    w.loads_in("a", 4.0)
    assert load_seconds(w.state, w.model("b")) is None


def test_two_loads_at_a_time_halve_the_wait():
    w = world(*(Resident(name, 40) for name in "abc"), policy=Policy(max_loading=2), limit=80)
    w.loads_in("a", 8.0)
    w.released("a")
    w.want("b")
    w.want("c")
    assert Forecast(w.state, w.now).until_ready("c") == 8.0


def test_a_model_that_fits_waits_for_the_load_before_it_and_for_no_room():
    w = world(Resident("a", 20), Resident("b", 40))
    w.loads_in("a", 2.0)
    w.send(ev.UnloadWanted("a", force=True))
    w.unloaded("a")
    w.want("a")
    w.want("b")
    assert w.states() == {"a": "loading", "b": "queued"}
    assert Forecast(w.state, w.now).until_ready("b") == 2.0 + 4.0


def test_a_client_that_waited_too_long_is_told_when_the_model_should_be_ready():
    w = world(Resident("a", 80), Resident("b", 80))
    w.loads_in("a", 30.0)
    waiter = w.want("b", bound=10.0)
    w.pass_time(10.0)
    error = w.refused(waiter)
    assert isinstance(error, ModelWaitTimeout)
    assert (error.waited, error.retry_after) == (10.0, 30.0)


def test_a_client_that_finds_the_queue_full_is_told_when_the_first_should_be_served():
    w = world(Resident("a", 80), Resident("b", 80), policy=Policy(queue_size=1))
    w.loads_in("a", 30.0)
    w.want("b")
    error = w.refused(w.want("b"))
    assert isinstance(error, ResidencyQueueFull)
    assert error.retry_after == 20.0 + 30.0  # max_wait, and the load


def test_a_client_that_finds_the_queue_full_of_loads_under_way_is_told_when_they_end():
    w = world(Resident("a", 40), policy=Policy(queue_size=1))
    w.loads_in("a", 30.0)
    w.send(ev.UnloadWanted("a", force=True))
    w.unloaded("a")
    w.want("a")
    w.now += 10.0
    error = w.refused(w.want("a"))
    assert isinstance(error, ResidencyQueueFull)
    assert error.retry_after == 20.0


def test_a_wait_of_which_nothing_is_known_is_told_with_a_few_seconds():
    w = world(Resident("a", 40))
    error = w.refused(w.want("a", bound=0.0))
    assert isinstance(error, ModelWaitTimeout)
    assert error.retry_after == 5.0


def test_a_queue_full_of_waits_for_models_that_leave_says_nothing_of_the_time():
    w = world(Resident("a", 40), policy=Policy(queue_size=1))
    w.make_ready("a", leases=1)
    w.send(ev.UnloadWanted("a"))
    w.want("a")
    error = w.refused(w.want("a"))
    assert isinstance(error, ResidencyQueueFull)
    assert error.retry_after == 5.0


def slow_answers(policy: Policy, answer: float | None) -> World:
    """A model that loads in 2 s is in use, another waits for it."""
    w = world(Resident("a", 80), Resident("b", 80), policy=policy)
    w.loads_in("a", 2.0)
    w.send(ev.Released("a", 1, seconds=answer))
    w.want("a")
    w.want("b", bound=None)
    return w


@pytest.mark.parametrize(
    ("policy", "answer", "expected"),
    [
        (Policy(max_wait=20.0), 30.0, 32.0),
        (Policy(max_wait=20.0), None, 22.0),
        (Policy(max_wait=float("inf")), None, None),
        (Policy(max_wait=float("inf")), 30.0, 32.0),
        (Policy(max_wait=0.0), None, None),
        (Policy(max_wait=20.0, min_residency=600.0), 30.0, 632.0),
    ],
)
def test_what_is_in_the_way_counts(policy, answer, expected):
    w = slow_answers(policy, answer)
    assert Forecast(w.state, w.now).until_ready("b") == expected


def test_a_fresh_model_that_is_idle_counts_with_its_minimum_time():
    w = slow_answers(Policy(min_residency=600.0), 30.0)
    w.released("a")
    assert Forecast(w.state, w.now).until_ready("b") == 602.0


def test_memory_that_is_no_models_makes_the_wait_unknown():
    w = slow_answers(Policy(), 30.0)
    w.send(ev.UnloadWanted("a", force=True))
    w.memory(measured=90)
    w.unloaded("a", clean=False)
    assert w.states() == {"a": "failed", "b": "queued"}
    assert Forecast(w.state, w.now).until_ready("b") is None


def test_memory_that_was_given_back_a_moment_ago_counts_with_the_time_that_it_may_take():
    w = slow_answers(Policy(), 30.0)
    w.send(ev.UnloadWanted("a", force=True))
    assert Forecast(w.state, w.now).until_ready("b") == 2.0
    w.memory(measured=90)
    w.unloaded("a")
    w.now += 1.0
    assert Forecast(w.state, w.now).until_ready("b") == 4.0 + 2.0
