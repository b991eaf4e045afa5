"""Explain tells what the planner would do, and changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import World, world

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.explain import Blocker, Plan, explain
from mlxd.registry.residency import Policy, Resident

A, B, C = Resident("a", 40), Resident("b", 40), Resident("c", 40)


def tell(w: World, name: str, **options: bool) -> Plan:
    before = w.state
    plan = explain(w.state, name, w.now, **options)
    assert w.state is before
    return plan


def test_a_ready_model_is_ready():
    w = world(A)
    w.make_ready("a")
    assert tell(w, "a") == Plan("a", "ready", 40, 60, eta_s=0.0)


def test_a_model_that_fits_loads():
    assert tell(world(A), "a") == Plan("a", "loads", 40, 100)


def test_a_load_under_way_is_told_with_the_time_that_is_left():
    w = world(A)
    w.loads_in("a", 8.0)
    w.send(ev.UnloadWanted("a", force=True))
    w.unloaded("a")
    w.want("a")
    w.now += 3.0
    plan = tell(w, "a")
    assert (plan.verdict, plan.eta_s) == ("loads", 5.0)


def test_the_models_that_would_be_evicted_are_named():
    w = world(A, B, C)
    w.make_ready("a")
    w.now += 100
    w.make_ready("b", leases=1)
    plan = tell(w, "c")
    assert (plan.verdict, plan.evicts, plan.needed_bytes, plan.free_bytes) == ("loads_after_eviction", ("a",), 40, 20)
    assert w.states()["a"] == "ready"


def test_what_is_in_the_way_is_named_with_the_reason():
    w = world(
        Resident("pinned", 20, pinned=True),
        Resident("leased", 40),
        Resident("fresh", 30),
        Resident("big", 80),
        policy=Policy(min_residency=60.0),
    )
    w.make_ready("pinned")
    w.make_ready("leased", leases=1)
    w.now += 50
    w.make_ready("fresh")
    plan = tell(w, "big")
    assert plan.verdict == "waits"
    assert plan.blocked_by == (
        Blocker("pinned", "pinned"),
        Blocker("leased", "leased"),
        Blocker("fresh", "min_residency"),
    )
    assert plan.waits_for == ("leased",)
    assert plan.evicts == ()


def test_a_model_that_can_never_fit_is_told_with_what_is_pinned():
    w = world(Resident("pinned", 70, pinned=True), A)
    w.make_ready("pinned")
    plan = tell(w, "a")
    assert (plan.verdict, plan.blocked_by) == ("never_fits", (Blocker("pinned", "pinned"),))


def test_a_model_waits_behind_the_load_and_the_queue_before_it():
    w = world(Resident("a", 80), Resident("b", 80), Resident("c", 80))
    w.loads_in("a", 8.0)
    w.released("a")
    w.want("b")
    w.unloaded("a")
    w.want("c")
    w.now += 2.0
    plan = tell(w, "a")
    assert (plan.verdict, plan.waits_for) == ("waits", ("b", "c"))
    # the rest of max_wait for what comes before it, the rest of a load, and two more
    assert plan.eta_s == 18.0 + 6.0 + 8.0 + 8.0


def test_a_model_that_leaves_is_waited_for():
    w = world(A)
    w.make_ready("a", leases=1)
    w.send(ev.UnloadWanted("a"))
    assert (tell(w, "a").verdict, tell(w, "a").waits_for) == ("waits", ("a",))
    w.released("a")
    assert tell(w, "a").waits_for == ("a",)


def test_an_eviction_under_way_is_waited_for():
    w = world(Resident("a", 80), Resident("b", 80), Resident("c", 10))
    w.make_ready("a")
    w.want("b")
    plan = tell(w, "b")
    assert (plan.verdict, plan.waits_for, plan.evicts) == ("waits", ("a",), ())


def test_a_model_in_back_off_loads_only_for_an_operator():
    w = world(A)
    w.want("a")
    w.send(ev.LoadBroke("a", 1, "bad_files", "truncated"))
    assert tell(w, "a").verdict == "backing_off"
    assert tell(w, "a", operator=True).verdict == "loads"


def test_without_autoload_only_an_operator_loads():
    w = world(A, policy=Policy(autoload=False))
    assert tell(w, "a").verdict == "autoload_off"
    assert tell(w, "a", operator=True).verdict == "loads"


def test_a_full_queue_is_no_matter_of_the_model():
    w = world(A, Resident("x", 100), policy=Policy(queue_size=1))
    w.make_ready("x", leases=1)
    w.want("a")
    assert tell(w, "a").verdict == "waits"


def test_a_daemon_that_closes_lets_everybody_wait():
    w = world(A)
    w.send(ev.Closing())
    assert tell(w, "a").verdict == "waits"


def test_a_model_that_is_not_known_was_removed():
    with pytest.raises(ModelRemoved):
        explain(world(A).state, "nobody", 0.0)


def test_a_load_that_was_asked_to_stop_is_waited_for():
    w = world(A)
    w.want("a")
    w.send(ev.CancelLoadWanted("a"))
    assert (tell(w, "a").verdict, tell(w, "a").waits_for) == ("waits", ("a",))


def test_the_time_of_answers_in_the_way_counts():
    w = world(Resident("a", 80), Resident("b", 80), policy=Policy(max_wait=0.0))
    w.loads_in("a", 8.0)
    w.send(ev.Released("a", 1, seconds=30.0))
    w.want("a")
    assert tell(w, "b").eta_s == 38.0


@given(st.lists(st.tuples(st.integers(10, 60), st.booleans(), st.booleans()), min_size=2, max_size=6))
def test_what_is_told_is_what_happens(drawn):
    w = world(*(Resident(f"m{number}", size, pinned=pinned) for number, (size, pinned, _) in enumerate(drawn)))
    for number, (_, _, leased) in enumerate(drawn[1:], start=1):
        if tell(w, f"m{number}").verdict == "loads":
            w.make_ready(f"m{number}", leases=int(leased))
            w.now += 10
    plan = tell(w, "m0")
    w.effects.clear()
    w.want("m0")
    assert plan.evicts == tuple(evicted.model for evicted in w.decided("evict"))
    assert (plan.verdict == "loads") == (w.states()["m0"] == "loading")
    assert (plan.verdict == "never_fits") == (w.refused(w.waiter_ids) is not None)
