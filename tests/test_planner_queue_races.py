"""Queues of other model daemons that hung, starved somebody or never ended, one test each."""

import pytest
from planning import World, world

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelTooLarge, ModelWaitTimeout
from mlxd.registry.residency import Policy, Resident

A, B, C = Resident("a", 40), Resident("b", 40), Resident("c", 40)
# Two of these do not fit together.
BIG_A, BIG_B = Resident("a", 80), Resident("b", 80)


def serve(w: World, name: str) -> None:
    """All that is under way for a model ends well, and its leases are given back."""
    if w.states()[name] == "loading":
        w.loaded(name)
    while w.model(name).leases:
        w.released(name)


def test_two_waiters_do_not_wait_for_the_same_victim():
    """Seen in llama.cpp #28443: both chose one victim, and one of them waited for ever."""
    w = world(A, B, C, Resident("d", 40))
    w.make_ready("a")
    w.now += 1.0
    w.make_ready("b")
    waiters = {w.want("c"), w.want("d")}
    for _ in range(8):
        for name, state in w.states().items():
            if state == "unloading":
                w.unloaded(name)
            elif state == "loading":
                w.loaded(name)
    assert waiters <= w.granted()
    assert w.states() == {"a": "unloaded", "b": "unloaded", "c": "ready", "d": "ready"}


def test_one_place_and_requests_for_others_do_not_lock_up():
    """Seen in llama.cpp #28829: with room for one model, a request for another hung the whole router."""
    w = world(A, B, C, policy=Policy(max_loaded=1))
    waiters = [w.want(name) for name in "abcabc"]
    for _ in range(20):
        for name in w.states():
            serve(w, name)
            if w.states()[name] == "unloading":
                w.unloaded(name)
    assert set(waiters) <= w.granted()
    assert len(w.of(ev.StartLoad)) == 3


def test_waiting_for_one_model_does_not_hold_up_another_that_is_ready():
    """Seen in ollama #14578: the head of the line held up everybody."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a", leases=1)
    w.want("b")
    assert w.want("a") in w.granted()


def test_waiting_for_a_busy_model_does_not_hold_up_a_load_that_takes_nothing_from_it():
    """Seen in ollama #14578, for loads."""
    w = world(BIG_A, BIG_B, Resident("small", 10))
    w.make_ready("a", leases=1)
    w.want("b")
    w.want("small")
    assert w.states() == {"a": "ready", "b": "queued", "small": "loading"}


def test_a_reader_that_leaves_the_queue_touches_nobody_at_work():
    """Seen in ik_llama #1929: it ended the answer that was being generated."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a", leases=1)
    before = w.model("a")
    w.send(ev.Left(w.want("b")))
    assert w.model("a") == before
    assert w.states() == {"a": "ready", "b": "unloaded"}
    assert w.state.waiters == ()


def test_those_who_want_one_model_are_served_together():
    """Seen in llama-swap #19, #612: requests that alternate between models swapped at each of them."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a", leases=1)
    waiters = {w.want("b"), w.want("b"), w.want("b")}
    w.released("a")
    w.unloaded("a")
    w.loaded("b")
    assert waiters <= w.granted()


def test_steady_traffic_does_not_starve_another_model():
    """Seen in llama-swap #612: the fast path went past the queue for as long as the model was in use."""
    w = world(BIG_A, BIG_B, policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    waiter = w.want("b", bound=None)
    for _ in range(100):
        w.pass_time(1.0)
        w.want("a")
        if w.model("a").leases:
            w.released("a")
        if w.states()["a"] == "unloading":
            break
    assert w.now - 1000.0 <= 22.0
    w.unloaded("a")
    w.loaded("b")
    assert waiter in w.granted()


def test_a_fresh_model_stays_for_a_while():
    """Seen in llama-swap #588 and oMLX #1938: models were swapped in turns and none did any work."""
    w = world(BIG_A, BIG_B, policy=Policy(min_residency=30.0, max_wait=60.0))
    w.make_ready("a")
    w.want("b")
    w.pass_time(29.0)
    assert w.want("a") in w.granted()
    w.released("a")
    w.pass_time(1.0)
    assert w.states() == {"a": "unloading", "b": "queued"}


def test_an_idle_model_that_drains_for_another_leaves_at_once():
    """Seen in llama.cpp #28443: what was decided was not followed up until something else happened."""
    w = world(A, B, Resident("c", 95), policy=Policy(max_wait=5.0))
    w.make_ready("a")
    w.make_ready("b", leases=1)
    w.want("c", bound=None)
    w.pass_time(5.0)
    assert w.states() == {"a": "unloading", "b": "draining", "c": "queued"}


@pytest.mark.parametrize("bound", [0.0, 5.0])
def test_every_wait_has_an_end(bound):
    """Seen in ollama #17408 and oMLX #785: waits without a bound outlived their clients."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a", leases=1)
    waiter = w.want("b", bound=bound)
    while w.refused(waiter) is None:
        assert w.tick() is not None
    assert isinstance(w.refused(waiter), ModelWaitTimeout)
    assert w.now <= 1000.0 + bound


def test_models_that_fit_one_at_a_time_are_served_in_turn():
    """Seen in oMLX #1970 and PR 3721: the loser of two requests got a 507 and not a place in the queue."""
    w = world(BIG_A, BIG_B)
    waiters = {w.want("a"), w.want("b"), w.want("a")}
    w.loaded("a")
    while w.model("a").leases:
        w.released("a")
    w.unloaded("a")
    w.loaded("b")
    assert waiters == w.granted()
    assert w.of(ev.Refuse) == []


def test_what_never_fits_is_told_at_once_and_for_good():
    """Seen in ollama #18282: it evicted, tried, and began again without end."""
    w = world(A, B, Resident("huge", 101))
    w.make_ready("a")
    w.make_ready("b")
    before = w.states()
    for _ in range(3):
        assert isinstance(w.refused(w.want("huge")), ModelTooLarge)
        w.pass_time(100.0)
    assert w.states() == before


def test_a_load_that_leaves_no_room_for_good_refuses_those_behind_it_at_once():
    """Seen in llama.cpp #28443: what followed from a decision was left undone until something else happened."""
    w = world(Resident("first", 10), Resident("a", 40, pinned=True), Resident("b", 65))
    w.want("first")
    w.want("a")
    waiter = w.want("b", bound=None)
    w.loaded("first")
    assert w.states()["a"] == "loading"
    assert isinstance(w.refused(waiter), ModelTooLarge)


def test_a_drain_for_one_that_is_refused_goes_on_for_the_next_in_the_queue():
    """Seen in llama.cpp #28443, after the memory limit dropped under what the first in the queue needs."""
    w = world(A, B, Resident("c", 60), Resident("d", 40), policy=Policy(max_wait=0.0))
    w.make_ready("a", leases=1)
    w.make_ready("b", leases=1)
    w.want("c", bound=None)
    w.memory(limit=50)
    waiter = w.want("d", bound=None)
    for name in [name for name, state in w.states().items() if state == "draining"]:
        w.released(name)
        w.unloaded(name)
    w.loaded("d")
    assert waiter in w.granted()
