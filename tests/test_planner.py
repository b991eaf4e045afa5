"""What the planner decides, one fact at a time."""

import pytest
from planning import world

from mlxd.registry import events as ev
from mlxd.registry.errors import (
    ModelLoadFailed,
    ModelNotLoaded,
    ModelTooLarge,
    ModelUnloaded,
    ModelWaitTimeout,
    ResidencyQueueFull,
    ShuttingDown,
)
from mlxd.registry.planner import next_deadline
from mlxd.registry.residency import MemoryReading, Policy, Purpose, Resident
from mlxd.registry.states import State

A, B, C = Resident("a", 40), Resident("b", 40), Resident("c", 40)


def test_a_request_for_a_cold_model_loads_it_and_gets_its_lease_with_the_load():
    w = world(A)
    waiter = w.want("a")
    assert w.states() == {"a": "loading"}
    w.loaded("a")
    assert w.granted() == {waiter}
    assert w.model("a").leases == 1


def test_fifty_requests_make_one_load():
    w = world(A)
    waiters = {w.want("a") for _ in range(50)}
    assert len(w.of(ev.StartLoad)) == 1
    w.loaded("a")
    assert w.granted() == waiters
    assert w.model("a").leases == 50


def test_a_ready_model_is_granted_while_another_loads():
    w = world(A, B)
    w.make_ready("a")
    w.want("b")
    assert w.states()["b"] == "loading"
    assert w.want("a") in w.granted()


def test_the_least_recently_used_idle_model_leaves_for_the_third():
    w = world(A, B, C)
    w.make_ready("a")
    w.now += 1
    w.make_ready("b")
    w.now += 1
    w.make_ready("a")
    w.now += 1
    w.want("c")
    assert w.states() == {"a": "ready", "b": "unloading", "c": "queued"}
    w.unloaded("b")
    assert w.states() == {"a": "ready", "b": "unloaded", "c": "loading"}
    (evicted,) = w.decided("evict")
    assert (evicted.model, evicted.reason, evicted.for_model) == ("b", "lru", "c")
    assert evicted.inputs["needed_bytes"] == 40


def test_a_pinned_model_is_never_evicted():
    w = world(Resident("a", 40, pinned=True), B, C)
    w.make_ready("a")
    w.now += 1
    w.make_ready("b")
    w.want("c")
    assert w.states()["a"] == "ready"
    assert w.states()["b"] == "unloading"


def test_a_leased_model_is_never_evicted_and_the_request_waits():
    w = world(A, B, C)
    w.make_ready("a", leases=1)
    w.make_ready("b", leases=1)
    waiter = w.want("c")
    assert w.states() == {"a": "ready", "b": "ready", "c": "queued"}
    w.released("b")
    assert w.states() == {"a": "ready", "b": "unloading", "c": "queued"}
    w.unloaded("b")
    w.loaded("c")
    assert waiter in w.granted()


def test_no_model_is_evicted_when_the_load_can_never_fit():
    w = world(A, Resident("huge", 101))
    w.make_ready("a")
    waiter = w.want("huge")
    error = w.refused(waiter)
    assert isinstance(error, ModelTooLarge)
    assert (error.needed_bytes, error.limit_bytes, error.limit) == (101, 100, "memory.ceiling")
    assert w.states() == {"a": "ready", "huge": "unloaded"}


def test_no_model_is_evicted_when_pinned_ones_leave_too_little():
    w = world(Resident("a", 70, pinned=True), Resident("b", 20), C)
    w.make_ready("a")
    w.make_ready("b")
    assert isinstance(w.refused(w.want("c")), ModelTooLarge)
    assert w.states()["b"] == "ready"


def test_only_as_many_models_leave_as_must():
    w = world(Resident("small", 10), A, B, C)
    w.make_ready("small")
    w.now += 1
    w.make_ready("a")
    w.now += 1
    w.make_ready("b")
    w.want("c")
    assert w.states() == {"small": "ready", "a": "unloading", "b": "ready", "c": "queued"}


def test_nobody_leaves_while_a_running_unload_will_make_the_room():
    w = world(A, B, C)
    w.make_ready("a")
    w.now += 1
    w.make_ready("b")
    w.send(ev.UnloadWanted("a", force=True))
    w.want("c")
    assert w.states() == {"a": "unloading", "b": "ready", "c": "queued"}


def test_the_measured_footprint_counts_when_it_is_above_the_books():
    w = world(A, B)
    w.state = w.state.__class__(
        w.state.policy, MemoryReading(100, "memory.ceiling", measured=70, base=10), w.state.models
    )
    w.want("a")
    assert w.states()["a"] == "queued"


def test_a_request_for_an_unloading_model_waits_for_its_next_load():
    w = world(A)
    w.make_ready("a")
    w.send(ev.UnloadWanted("a"))
    waiter = w.want("a")
    assert w.states()["a"] == "unloading"
    w.unloaded("a")
    assert w.states()["a"] == "loading"
    w.loaded("a")
    assert waiter in w.granted()


def test_a_fresh_model_is_not_evicted_before_the_request_that_loaded_it():
    w = world(Resident("a", 80), Resident("b", 80))
    first, second = w.want("a"), w.want("b")
    w.loaded("a")
    assert first in w.granted()
    assert w.states() == {"a": "ready", "b": "queued"}
    w.released("a")
    w.unloaded("a")
    w.loaded("b")
    assert second in w.granted()


def test_a_failed_load_refuses_its_waiters_and_backs_off_twice_as_long_each_time():
    w = world(A, policy=Policy(retry_backoff=5.0))
    for attempt, wait in enumerate((5.0, 10.0, 20.0), start=1):
        waiter = w.want("a")
        w.send(ev.LoadBroke("a", w.generation("a"), "bad_files", "truncated"))
        error = w.refused(waiter)
        assert isinstance(error, ModelLoadFailed)
        assert (error.failure.reason, error.failure.attempts, error.retry_after) == ("bad_files", attempt, wait)
        assert w.states()["a"] == "failed"
        w.now += wait - 1
        assert isinstance(w.refused(w.want("a")), ModelLoadFailed)
        w.now += 1
    w.want("a")
    assert w.states()["a"] == "loading"


def test_back_off_is_bounded():
    w = world(A, policy=Policy(retry_backoff=5.0, max_backoff=300.0))
    for _ in range(40):
        waiter = w.want("a")
        w.send(ev.LoadBroke("a", w.generation("a"), "bad_files", "x"))
        error = w.refused(waiter)
        assert isinstance(error, ModelLoadFailed)
        assert error.retry_after <= 300.0
        w.now += error.retry_after


def test_an_operator_may_load_during_back_off_and_success_clears_the_failure():
    w = world(A)
    w.want("a")
    w.send(ev.LoadBroke("a", w.generation("a"), "bad_files", "x"))
    operator = w.want("a", Purpose.LOAD, bound=None)
    assert w.states()["a"] == "loading"
    w.loaded("a")
    assert operator in w.granted()
    assert w.model("a").trouble is None
    assert w.model("a").leases == 0


def test_an_operators_load_ends_the_back_off_for_everybody():
    w = world(A)
    w.want("a")
    w.send(ev.LoadBroke("a", w.generation("a"), "bad_files", "x"))
    w.load("a")
    assert w.refused(w.want("a")) is None
    w.send(ev.CancelLoadWanted("a"))
    w.send(ev.LoadBroke("a", w.generation("a"), "cancelled", "", cancelled=True))
    assert w.refused(w.want("a")) is None
    w.send(ev.LoadBroke("a", w.generation("a"), "bad_files", "x"))
    assert w.model("a").trouble.attempts == 2


def test_the_minimum_time_of_a_model_does_not_count_when_the_machine_is_short_of_memory():
    w = world(A, policy=Policy(min_residency=600.0))
    w.make_ready("a")
    w.send(ev.RoomNeeded(1, 30, "prefill"))
    assert w.states() == {"a": "ready"}
    w.send(ev.RoomNeeded(2, 30, "memory_ceiling", partial=True))
    assert w.states() == {"a": "unloading"}


def test_a_waiter_past_its_deadline_is_refused():
    w = world(A, B, C)
    w.make_ready("a", leases=1)
    w.make_ready("b", leases=1)
    waiter = w.want("c", bound=10.0)
    assert next_deadline(w.state, w.now) == w.now + 10.0
    w.pass_time(10.0)
    assert isinstance(w.refused(waiter), ModelWaitTimeout)
    assert w.states()["c"] == "unloaded"


def test_a_request_that_may_not_wait_is_refused_at_once():
    w = world(A)
    assert isinstance(w.refused(w.want("a", bound=0.0)), ModelWaitTimeout)
    w.make_ready("a")
    assert w.want("a", bound=0.0) in w.granted()


def test_a_waiter_that_leaves_is_forgotten_and_hurts_no_other():
    w = world(A)
    first, second = w.want("a"), w.want("a")
    w.send(ev.Left(first))
    w.loaded("a")
    assert w.granted() == {second}


def test_a_load_that_nobody_waits_for_gives_way_to_one_that_somebody_does():
    w = world(Resident("a", 80), Resident("b", 80))
    w.send(ev.Left(w.want("a")))
    assert w.of(ev.CancelLoad) == []
    w.want("b")
    assert w.of(ev.CancelLoad) == [ev.CancelLoad("a")]
    w.send(ev.LoadBroke("a", w.generation("a"), "cancelled", "", cancelled=True))
    assert w.states() == {"a": "unloaded", "b": "loading"}


def test_a_request_after_a_cancelled_load_gets_a_new_load():
    w = world(A)
    first = w.want("a")
    w.send(ev.CancelLoadWanted("a"))
    assert isinstance(w.refused(first), ModelLoadFailed)
    second = w.want("a")
    w.send(ev.LoadBroke("a", w.generation("a"), "cancelled", "", cancelled=True))
    assert w.states()["a"] == "loading"
    assert w.generation("a") == 2
    w.loaded("a")
    assert second in w.granted()


def test_events_of_an_older_generation_change_nothing():
    w = world(A)
    w.make_ready("a", leases=1)
    old = w.generation("a")
    w.send(ev.UnloadWanted("a", force=True))
    w.unloaded("a")
    w.make_ready("a", leases=2)
    for event in (
        ev.Released("a", old),
        ev.LoadDone("a", old),
        ev.LoadBroke("a", old, "crashed", ""),
        ev.UnloadDone("a", old),
        ev.EngineDied("a", old, ""),
    ):
        before = w.state.models
        w.send(event)
        assert w.state.models == before


def test_an_idle_model_expires_after_its_ttl_counted_from_the_end_of_the_last_request():
    w = world(Resident("a", 40, ttl=60.0))
    w.make_ready("a", leases=1)
    w.pass_time(300.0)
    assert w.states()["a"] == "ready"
    w.released("a")
    assert next_deadline(w.state, w.now) == w.now + 60.0
    w.pass_time(59.0)
    assert w.states()["a"] == "ready"
    w.pass_time(1.0)
    assert w.states()["a"] == "unloading"
    assert [d.reason for d in w.decided("expire")] == ["ttl"]


def test_a_pinned_model_does_not_expire():
    w = world(Resident("a", 40, ttl=60.0, pinned=True))
    w.make_ready("a")
    w.pass_time(1000.0)
    assert w.states()["a"] == "ready"


def test_a_ttl_that_is_changed_applies_at_once():
    w = world(A)
    w.make_ready("a")
    w.now += 100.0
    w.send(ev.PolicyChanged("a", ttl=50.0, change_ttl=True))
    assert w.states()["a"] == "unloading"


def test_a_client_keeps_a_loaded_model_alive_instead_of_its_ttl():
    w = world(Resident("a", 40, ttl=60.0))
    w.make_ready("a", leases=1)
    w.send(ev.KeptAlive("a", 0.0))
    assert w.states()["a"] == "ready"
    w.send(ev.KeptAlive("a", 300.0))
    w.released("a")
    assert next_deadline(w.state, w.now) == w.now + 300.0
    w.pass_time(299.0)
    assert w.states()["a"] == "ready"
    w.send(ev.KeptAlive("a", None))
    w.pass_time(1e6)
    assert w.states()["a"] == "ready"
    w.send(ev.KeptAlive("a", 0.0))
    assert w.states()["a"] == "unloading"


def test_what_a_client_said_ends_with_the_load_that_it_was_said_of():
    w = world(Resident("a", 40, ttl=60.0))
    w.send(ev.KeptAlive("a", 0.0))
    w.make_ready("a")
    w.pass_time(1.0)
    assert w.states()["a"] == "ready"
    w.send(ev.KeptAlive("a", 0.0))
    w.unloaded("a")
    w.make_ready("a")
    assert next_deadline(w.state, w.now) == w.now + 60.0


def test_an_operators_ttl_takes_the_place_of_what_a_client_said():
    w = world(Resident("a", 40, ttl=60.0))
    w.make_ready("a")
    w.send(ev.KeptAlive("a", None))
    w.send(ev.PolicyChanged("a", pinned=False))
    assert next_deadline(w.state, w.now) is None
    w.send(ev.PolicyChanged("a", ttl=50.0, change_ttl=True))
    assert next_deadline(w.state, w.now) == w.now + 50.0


def test_nobody_is_kept_alive_who_is_not_known():
    w = world(A)
    before = w.state.models
    w.send(ev.KeptAlive("nobody", 1.0))
    assert w.state.models == before


def test_without_autoload_only_an_operator_loads():
    w = world(A, policy=Policy(autoload=False))
    assert isinstance(w.refused(w.want("a")), ModelNotLoaded)
    w.want("a", Purpose.LOAD, bound=None)
    w.loaded("a")
    assert w.want("a") in w.granted()


def test_a_full_queue_refuses_requests_but_not_for_ready_models():
    w = world(A, B, C, policy=Policy(queue_size=1))
    w.make_ready("a", leases=1)
    w.make_ready("b", leases=1)
    w.want("c")
    assert isinstance(w.refused(w.want("c")), ResidencyQueueFull)
    assert w.want("a") in w.granted()


def test_models_in_the_way_drain_after_max_wait():
    w = world(A, B, C, policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    w.now += 1
    w.make_ready("b", leases=1)
    waiter = w.want("c")
    assert next_deadline(w.state, w.now) == w.now + 20.0
    w.pass_time(20.0)
    assert w.states() == {"a": "draining", "b": "ready", "c": "queued"}
    late = w.want("a")
    assert late not in w.granted()
    w.released("a")
    w.unloaded("a")
    w.loaded("c")
    assert waiter in w.granted()


def test_max_loaded_bounds_the_number_of_models():
    w = world(Resident("a", 1), Resident("b", 1), policy=Policy(max_loaded=1))
    w.make_ready("a")
    w.want("b")
    assert w.states() == {"a": "unloading", "b": "queued"}


def test_min_residency_keeps_a_fresh_model():
    w = world(Resident("a", 80), Resident("b", 80), policy=Policy(min_residency=30.0))
    w.make_ready("a")
    w.want("b")
    assert w.states()["a"] == "ready"
    assert next_deadline(w.state, w.now) == w.now + 20.0
    w.pass_time(30.0)
    assert w.states()["a"] in ("unloading", "draining")


def test_an_operators_drain_finishes_what_runs_and_admits_nothing_new():
    w = world(A)
    w.make_ready("a", leases=2)
    w.send(ev.UnloadWanted("a", until=w.now + 30.0))
    assert w.states()["a"] == "draining"
    late = w.want("a")
    w.released("a")
    assert w.states()["a"] == "draining"
    w.released("a")
    assert w.states()["a"] == "unloading"
    w.unloaded("a")
    w.loaded("a")
    assert late in w.granted()


def test_a_drain_past_its_deadline_cuts_the_rest_off():
    w = world(A)
    w.make_ready("a", leases=1)
    w.send(ev.UnloadWanted("a", until=w.now + 30.0))
    assert next_deadline(w.state, w.now) == w.now + 30.0
    w.pass_time(30.0)
    assert w.states()["a"] == "unloading"
    assert w.model("a").leases == 0


def test_unloading_a_queued_model_refuses_its_waiters():
    w = world(A, B, C)
    w.make_ready("a", leases=1)
    w.make_ready("b", leases=1)
    waiter = w.want("c")
    w.send(ev.UnloadWanted("c"))
    assert isinstance(w.refused(waiter), ModelUnloaded)
    assert w.states()["c"] == "unloaded"


def test_an_engine_that_does_not_close_is_reported():
    w = world(A)
    w.make_ready("a")
    w.send(ev.UnloadWanted("a"))
    w.unloaded("a", clean=False)
    assert w.states()["a"] == "failed"
    assert w.model("a").trouble.reason == "stalled"


def test_room_for_a_prompt_evicts_idle_models_and_answers_when_they_are_gone():
    w = world(A, B)
    w.make_ready("a")
    w.now += 1
    w.make_ready("b", leases=1)
    effects = w.send(ev.RoomNeeded(7, 30, "prefill", for_model="b", for_request="r"))
    assert w.states() == {"a": "unloading", "b": "ready"}
    assert ev.RoomAnswered(7) not in effects
    assert ev.RoomAnswered(7) in w.unloaded("a")
    (evicted,) = w.decided("evict")
    assert (evicted.model, evicted.for_model, evicted.for_request) == ("a", "b", "r")


def test_room_that_idle_models_cannot_make_evicts_nothing_and_is_answered_at_once():
    w = world(A, B)
    w.make_ready("a")
    w.make_ready("b", leases=1)
    assert ev.RoomAnswered(7) in w.send(ev.RoomNeeded(7, 41, "prefill"))
    assert w.states() == {"a": "ready", "b": "ready"}


def test_the_guard_takes_what_it_can_get():
    w = world(A, B)
    w.make_ready("a")
    w.make_ready("b", leases=1)
    w.send(ev.RoomNeeded(7, 1000, "memory_soft", partial=True))
    assert w.states() == {"a": "unloading", "b": "ready"}


def test_closing_refuses_those_who_wait_and_those_who_come():
    w = world(A, B, C)
    w.make_ready("a", leases=1)
    w.make_ready("b", leases=1)
    waiter = w.want("c")
    w.send(ev.Closing())
    assert isinstance(w.refused(waiter), ShuttingDown)
    assert isinstance(w.refused(w.want("a")), ShuttingDown)
    assert w.model("a").leases == 1


def test_a_model_pinned_in_the_way_refuses_the_waiter_it_makes_impossible():
    w = world(A, B, C, limit=80)
    w.make_ready("a", leases=1)
    w.make_ready("b", leases=1)
    waiter = w.want("c")
    w.send(ev.PolicyChanged("a", pinned=True))
    assert w.refused(waiter) is None
    w.send(ev.PolicyChanged("b", pinned=True))
    assert isinstance(w.refused(waiter), ModelTooLarge)


@pytest.mark.parametrize("state", [State.UNLOADED, State.LOADING])
def test_next_deadline_is_none_when_nothing_is_due(state):
    w = world(A)
    if state is State.LOADING:
        w.want("a", bound=None)
    assert next_deadline(w.state, w.now) is None
