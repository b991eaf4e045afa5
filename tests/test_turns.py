"""A load steps aside for engines at work, for a bounded time, and goes on at once when they have finished."""

import threading
import time

import pytest

from mlxd.engines import turns as module
from mlxd.engines.turns import Turns


def test_a_load_alone_does_not_wait():
    assert Turns().step_aside(1e9)


def test_a_stretch_is_not_interrupted():
    turns = Turns()
    turns.begin()
    assert not turns.step_aside(module.STRETCH / 2)


@pytest.mark.parametrize("engines", [1, 2])
def test_a_load_goes_on_when_the_last_engine_has_finished(engines):
    turns = Turns()
    for _ in range(engines):
        turns.begin()
    loading = threading.Thread(target=turns.step_aside, args=(1e6,))
    loading.start()
    for _ in range(engines):
        assert loading.is_alive()
        turns.end()
    loading.join(10)
    assert not loading.is_alive()


def test_a_load_goes_on_after_its_time_though_others_work_on():
    turns = Turns()
    turns.begin()
    loading = threading.Thread(target=turns.step_aside, args=(module.STRETCH,))
    loading.start()
    loading.join(60)
    assert not loading.is_alive()


def test_a_rest_is_over_where_only_the_callers_own_are_at_work():
    turns = Turns()
    turns.begin()
    assert turns.rest(time.monotonic() + 1e6, own=1)


def test_a_rest_is_waited_for_no_longer_than_there_is_patience():
    turns = Turns()
    turns.begin()
    turns.begin()
    until = time.monotonic() + 1e6
    assert not turns.rest(until, own=1, patience=0)
    assert not turns.rest(until, own=1, patience=0.01)
    assert turns.rest(time.monotonic() + 0.01, own=1, patience=1e6)


def test_a_rest_ends_with_the_work_of_others():
    turns = Turns()
    turns.begin()
    turns.begin()
    rested = []
    resting = threading.Thread(target=lambda: rested.append(turns.rest(time.monotonic() + 1e6, own=1)))
    resting.start()
    turns.end()
    resting.join(10)
    assert rested == [True]
