"""Who is served next: collation, keys that take turns, passing, and drains that are taken back."""

from planning import world

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelLoadFailed, ModelTooLarge, ResidencyQueueFull
from mlxd.registry.planner import next_deadline
from mlxd.registry.queue import in_order
from mlxd.registry.residency import Policy, Resident

A, B, C = Resident("a", 40), Resident("b", 40), Resident("c", 40)


def names(effects: list[ev.Effect]) -> list[str]:
    return [effect.model for effect in effects if isinstance(effect, ev.StartLoad)]


def test_everybody_who_waits_for_a_model_is_served_by_its_one_load():
    w = world(Resident("a", 80), Resident("b", 80), Resident("c", 80))
    w.make_ready("a", leases=1)
    waiters = [w.want(name) for name in ("b", "c", "b", "c", "b")]
    w.released("a")
    w.unloaded("a")
    w.loaded("b")
    assert w.granted() >= {waiters[0], waiters[2], waiters[4]}
    for _ in range(3):
        w.released("b")
    w.unloaded("b")
    w.loaded("c")
    assert w.granted() >= set(waiters)
    assert [load.model for load in w.of(ev.StartLoad)] == ["a", "b", "c"]


def test_a_key_with_many_wishes_does_not_keep_another_waiting():
    w = world(*(Resident(name, 80) for name in "abcxy"))
    w.make_ready("x", leases=1)
    for name in "abc":
        w.want(name, key="greedy")
    w.now += 1
    w.want("y", key="modest")
    w.released("x")
    w.unloaded("x")
    served = []
    for _ in range(4):
        (loading,) = [name for name, state in w.states().items() if state == "loading"]
        served.append(loading)
        w.now += 1
        w.loaded(loading)
        w.released(loading)
        w.unloaded(loading)
    assert served == ["a", "y", "b", "c"]


def test_new_keys_do_not_keep_an_old_one_waiting():
    w = world(*(Resident(name, 80) for name in "abcdz"))
    w.make_ready("z", leases=1)
    w.now += 1
    w.want("a", key="served")
    w.want("d", key="old")
    w.released("z")
    w.unloaded("z")
    served = []
    for number, fresh in enumerate("bca"):
        (loading,) = [name for name, state in w.states().items() if state == "loading"]
        served.append(loading)
        w.now += 1
        w.want(fresh, key=f"new-{number}")
        w.loaded(loading)
        w.released(loading)
        w.unloaded(loading)
    assert served == ["a", "d", "b"]


def test_a_key_that_nobody_waits_with_is_forgotten():
    w = world(A)
    for number in range(3):
        w.want("a", key=f"key-{number}")
        w.loaded("a")
        w.send(ev.UnloadWanted("a", force=True))
        w.unloaded("a")
    assert set(w.state.served) == {"key-2"}


def test_without_keys_the_order_is_that_of_arrival():
    w = world(A, B, Resident("x", 100))
    w.make_ready("x", leases=1)
    ids = [w.want("a"), w.want("b"), w.want("a")]
    assert [waiter.id for waiter in in_order(w.state)] == ids


def test_a_key_with_its_share_of_a_full_queue_gets_no_more():
    w = world(*(Resident(name, 80) for name in "abcx"), policy=Policy(queue_size=2))
    w.make_ready("x", leases=1)
    w.want("a", key="one")
    w.want("b", key="one")
    refused = w.refused(w.want("c", key="one"))
    assert isinstance(refused, ResidencyQueueFull)


def test_a_key_without_its_share_takes_the_youngest_place_of_the_one_with_most():
    w = world(*(Resident(name, 80) for name in "abcx"), policy=Policy(queue_size=2))
    w.make_ready("x", leases=1)
    first, second = w.want("a", key="greedy"), w.want("b", key="greedy")
    newcomer = w.want("c", key="modest")
    assert w.refused(first) is None
    assert isinstance(w.refused(second), ResidencyQueueFull)
    assert w.refused(newcomer) is None


def test_no_key_takes_a_place_of_one_that_has_no_more_than_its_share():
    w = world(*(Resident(name, 80) for name in "abcx"), policy=Policy(queue_size=2))
    w.make_ready("x", leases=1)
    w.want("a", key="one")
    w.want("b", key="two")
    assert isinstance(w.refused(w.want("c", key="three")), ResidencyQueueFull)


def test_operators_need_no_place_in_the_queue_and_give_none_away():
    w = world(*(Resident(name, 80) for name in "abx"), policy=Policy(queue_size=1))
    w.make_ready("x", leases=1)
    assert w.refused(w.load("a")) is None
    assert w.refused(w.load("b")) is None
    assert w.refused(w.want("b")) is None
    assert isinstance(w.refused(w.want("b")), ResidencyQueueFull)


def test_a_small_model_loads_while_a_large_one_waits_for_the_busy():
    w = world(Resident("busy", 60), Resident("large", 80), Resident("small", 20))
    w.make_ready("busy", leases=1)
    w.want("large")
    w.want("small")
    assert w.states() == {"busy": "ready", "large": "queued", "small": "loading"}


def test_nobody_passes_who_would_need_an_eviction():
    w = world(Resident("busy", 60), Resident("idle", 20), Resident("large", 90), Resident("next", 30))
    w.make_ready("idle")
    w.make_ready("busy", leases=1)
    w.want("large")
    w.want("next")
    assert w.states()["next"] == "queued"
    assert w.states()["idle"] == "ready"


def test_nobody_passes_whose_room_the_first_would_miss():
    w = world(Resident("pinned", 30, pinned=True), Resident("busy", 40), Resident("large", 60), Resident("small", 20))
    w.make_ready("pinned")
    w.make_ready("busy", leases=1)
    w.want("large")
    w.want("small")
    assert w.states()["small"] == "queued"


def test_those_who_passed_together_leave_enough_for_the_first():
    w = world(*(Resident(name, size) for name, size in (("busy", 50), ("first", 60), ("one", 30), ("two", 20))))
    w.make_ready("busy", leases=1)
    w.now += 1
    w.want("first")
    w.now += 1
    w.want("one")
    w.loaded("one")
    w.want("two")
    assert w.states() == {"busy": "ready", "first": "queued", "one": "ready", "two": "queued"}
    w.released("busy")
    w.unloaded("busy")
    assert w.states()["first"] == "loading"


def test_nobody_passes_once_the_first_has_waited_long_enough():
    w = world(Resident("busy", 60), Resident("large", 80), Resident("small", 20), policy=Policy(max_wait=20.0))
    w.make_ready("busy", leases=1)
    w.want("large")
    w.pass_time(20.0)
    w.want("small")
    assert w.states() == {"busy": "draining", "large": "queued", "small": "queued"}


def test_nobody_passes_who_would_still_load_by_then():
    w = world(Resident("busy", 60), Resident("large", 80), Resident("small", 20), policy=Policy(max_wait=20.0))
    w.loads_in("busy", 60.0)  # a byte a second
    w.want("large")
    w.now += 1.0
    w.want("small")
    assert w.states()["small"] == "queued"


def test_two_models_load_at_once_where_both_fit_and_that_is_allowed():
    w = world(A, B, C, policy=Policy(max_loading=2))
    for name in "abc":
        w.want(name)
    assert w.states() == {"a": "loading", "b": "loading", "c": "queued"}


def test_of_two_loads_the_unwanted_one_gives_its_room():
    w = world(A, B, C, policy=Policy(max_loading=3))
    left = w.want("a")
    w.want("b")
    w.send(ev.Left(left))
    assert w.of(ev.CancelLoad) == []
    w.want("c")
    assert w.of(ev.CancelLoad) == [ev.CancelLoad("a")]


def test_a_load_is_asked_to_stop_once():
    w = world(Resident("a", 80), Resident("b", 80))
    w.send(ev.Left(w.want("a")))
    w.want("b")
    w.pass_time(1.0)
    w.pass_time(1.0)
    assert w.of(ev.CancelLoad) == [ev.CancelLoad("a")]


def test_unloading_a_model_that_loads_cancels_the_load():
    w = world(A)
    waiter = w.want("a")
    assert ev.CancelLoad("a") in w.send(ev.UnloadWanted("a"))
    assert isinstance(w.refused(waiter), ModelLoadFailed)


def test_a_cancelled_load_that_gets_ready_all_the_same_is_unloaded():
    w = world(A)
    w.want("a")
    w.send(ev.CancelLoadWanted("a"))
    w.loaded("a")
    assert w.states() == {"a": "unloading"}


def test_who_came_after_an_operators_cancel_is_served_by_the_next_load():
    w = world(A)
    w.want("a")
    w.send(ev.CancelLoadWanted("a"))
    late = w.want("a")
    w.loaded("a")
    assert w.states() == {"a": "unloading"}
    w.unloaded("a")
    w.loaded("a")
    assert late in w.granted()


def test_a_load_that_gave_way_too_late_serves_who_came_meanwhile():
    w = world(Resident("a", 80), Resident("b", 80))
    w.send(ev.Left(w.want("a")))
    w.want("b")
    late = w.want("a")
    w.loaded("a")
    assert late in w.granted()
    assert w.states() == {"a": "ready", "b": "queued"}


def test_a_drain_is_taken_back_when_nobody_waits_for_its_room_any_more():
    w = world(Resident("a", 80), Resident("b", 80), policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    waiting = w.want("b")
    w.pass_time(20.0)
    late = w.want("a")
    assert w.states() == {"a": "draining", "b": "queued"}
    w.send(ev.Left(waiting))
    assert w.states() == {"a": "ready", "b": "unloaded"}
    assert late in w.granted()


def test_a_drain_is_taken_back_when_the_room_came_from_elsewhere():
    w = world(A, B, C, policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    w.now += 1
    w.make_ready("b", leases=1)
    w.want("c")
    w.pass_time(20.0)
    assert w.states()["a"] == "draining"
    w.released("b")
    w.unloaded("b")
    assert w.states() == {"a": "ready", "b": "unloaded", "c": "loading"}


def test_a_drain_that_an_operator_asked_for_is_not_taken_back():
    w = world(Resident("a", 80), Resident("b", 80), policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    waiting = w.want("b")
    w.pass_time(20.0)
    w.send(ev.UnloadWanted("a", until=w.now + 60.0))
    w.send(ev.Left(waiting))
    assert w.states()["a"] == "draining"


def test_a_fresh_model_does_not_drain_before_its_minimum_time():
    w = world(Resident("a", 80), Resident("b", 80), policy=Policy(max_wait=20.0, min_residency=30.0))
    w.make_ready("a", leases=1)
    w.want("b")
    w.pass_time(20.0)
    assert w.states()["a"] == "ready"
    assert next_deadline(w.state, w.now) == w.now + 10.0
    w.pass_time(10.0)
    assert w.states()["a"] == "draining"


def test_a_pin_that_takes_a_drain_back_refuses_the_one_it_was_for():
    w = world(Resident("a", 80), Resident("b", 80), policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    waiting = w.want("b")
    w.pass_time(20.0)
    w.send(ev.PolicyChanged("a", pinned=True))
    assert w.states() == {"a": "ready", "b": "unloaded"}
    assert isinstance(w.refused(waiting), ModelTooLarge)
