"""While other programs need memory less may be in use. Loads wait for that to be over; nothing is too large for it."""

import pytest
from planning import World, world

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelTooLarge, ModelWaitTimeout
from mlxd.registry.explain import explain
from mlxd.registry.forecast import Forecast
from mlxd.registry.ledger import Ledger
from mlxd.registry.planner import REMEASURE, next_deadline
from mlxd.registry.residency import MemoryReading, Policy, Resident

A, B, C = Resident("a", 40), Resident("b", 40), Resident("c", 40)


def pressed(*models: Resident, limit_now: int = 30, policy: Policy | None = None) -> World:
    """Of 100 bytes only some may be used now."""
    w = world(*models, policy=policy)
    w.memory(limit_now=limit_now)
    return w


def test_a_load_waits_until_it_is_over():
    w = pressed(A)
    waiter = w.want("a", bound=None)
    w.let_time_pass(1000.0)
    assert w.states() == {"a": "queued"}
    assert w.refused(waiter) is None
    assert w.looks_again(limit_now=None) <= REMEASURE
    assert w.states() == {"a": "loading"}


def test_it_is_looked_at_again_while_somebody_waits_for_it_and_not_otherwise():
    w = pressed(A)
    assert next_deadline(w.state, w.now) is None
    w.want("a", bound=None)
    assert next_deadline(w.state, w.now) == w.now + REMEASURE


def test_whoever_waits_too_long_is_told_to_come_back():
    w = pressed(A)
    waiter = w.want("a", bound=10.0)
    w.let_time_pass(10.0)
    error = w.refused(waiter)
    assert isinstance(error, ModelWaitTimeout)
    assert error.retry_after > 0.0


def test_what_is_too_large_at_all_is_refused_as_ever():
    w = pressed(Resident("a", 101))
    error = w.refused(w.want("a"))
    assert isinstance(error, ModelTooLarge)
    assert error.limit_bytes == 100


def test_nobody_who_waits_is_refused_when_it_begins():
    w = world(A, B, C)
    w.make_ready("a", leases=1)
    w.make_ready("b", leases=1)
    waiter = w.want("c")
    w.memory(limit_now=0)
    w.send(ev.Tick())
    assert w.refused(waiter) is None


def test_a_limit_that_is_above_the_other_counts_for_nothing():
    assert MemoryReading(100, "memory.ceiling", 0, 0, limit_now=120).present_limit == 100


def test_a_load_is_let_in_below_the_limit_that_holds_now():
    w = pressed(A, B, limit_now=60)
    w.want("a")
    w.want("b")
    assert w.states() == {"a": "loading", "b": "queued"}
    assert w.decided("load")[0].inputs == {"needed_bytes": 40, "free_bytes": 60}


def test_idle_models_leave_for_a_load_that_fits_then():
    w = world(A, B)
    w.make_ready("a")
    w.memory(limit_now=40)
    w.want("b")
    assert w.states() == {"a": "unloading", "b": "queued"}


def test_idle_models_stay_when_it_would_not_be_enough():
    w = world(A, B)
    w.make_ready("a")
    w.memory(limit_now=39)
    w.want("b")
    assert w.states() == {"a": "ready", "b": "queued"}


@pytest.mark.parametrize(("limit_now", "state"), [(40, "draining"), (39, "ready")])
def test_busy_models_drain_after_max_wait_only_if_it_helps(limit_now, state):
    w = world(A, B, policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    w.memory(limit_now=limit_now)
    w.want("b", bound=None)
    w.let_time_pass(100.0)
    assert w.states() == {"a": state, "b": "queued"}


def test_a_drain_is_taken_back_when_it_is_over_before_the_drain_is():
    w = world(A, B, policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    w.memory(limit_now=40)
    w.want("b", bound=None)
    w.let_time_pass(20.0)
    assert w.states()["a"] == "draining"
    w.looks_again(limit_now=None)
    assert w.states() == {"a": "ready", "b": "loading"}


def test_somebody_who_fits_passes_one_who_does_not_while_it_lasts():
    w = pressed(Resident("a", 60), Resident("b", 20), policy=Policy(max_wait=20.0))
    w.want("a", bound=None)
    w.want("b", bound=None)
    assert w.states() == {"a": "queued", "b": "queued"}, "the first would not fit beside it, as far as is known"


def test_explain_tells_that_it_is_nobody_who_is_waited_for():
    w = world(A, B)
    w.make_ready("a", leases=1)
    w.memory(limit_now=30)
    plan = explain(w.state, "b", w.now)
    assert (plan.verdict, plan.waits_for, plan.free_bytes) == ("waits", (), -10)
    assert plan.eta_s is None
    w.memory(limit_now=40)
    assert explain(w.state, "b", w.now).waits_for == ("a",)


def test_explain_says_never_fits_of_what_never_fits_only():
    assert explain(pressed(A).state, "a", 1000.0).verdict == "waits"
    assert explain(pressed(Resident("a", 101)).state, "a", 1000.0).verdict == "never_fits"


def test_nobody_knows_when_it_is_over():
    w = pressed(A)
    w.want("a", bound=None)
    assert Forecast(w.state, w.now).until_ready("a") is None


def test_what_may_not_be_used_now_is_not_unused():
    memory = MemoryReading(100, "memory.ceiling", measured=20, base=10, prefixes=5, limit_now=60)
    assert memory.unused == 35
    w = world(A)
    w.memory(measured=20, base=10, prefixes=5, limit_now=60)
    assert Ledger.of(w.state, w.now).free == 40
