"""A changed configuration touches only the models that were removed or are loaded otherwise now."""

from dataclasses import replace

import pytest
from planning import World, world

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelRemoved, ModelTooLarge
from mlxd.registry.ledger import Ledger
from mlxd.registry.residency import Policy, Resident

A, B = Resident("a", 40, load_key="a1"), Resident("b", 40, load_key="b1")


def reconfigure(w: World, *models: Resident, policy: Policy | None = None) -> list[ev.Effect]:
    return w.send(ev.Reconfigured(policy or w.state.policy, models))


def test_a_model_that_did_not_change_is_not_touched():
    w = world(A, B)
    w.make_ready("a", leases=1)
    before = w.state.models
    assert reconfigure(w, A, B) == []
    assert w.state.models == before


def test_pin_and_ttl_apply_to_a_model_in_use():
    w = world(A)
    w.make_ready("a", leases=1)
    reconfigure(w, replace(A, pinned=True, ttl=60.0))
    assert (w.model("a").pinned, w.model("a").ttl, w.model("a").leases) == (True, 60.0, 1)
    assert w.states() == {"a": "ready"}


def test_what_a_client_said_of_a_model_holds_until_another_ttl_is_configured():
    w = world(A)
    w.make_ready("a")
    w.send(ev.KeptAlive("a", 300.0))
    reconfigure(w, replace(A, kv_floor=A.kv_floor + 1))
    assert w.model("a").idle_limit == 300.0
    reconfigure(w, replace(A, ttl=60.0))
    assert w.model("a").idle_limit == 60.0


def test_a_new_model_can_be_asked_for():
    w = world(A)
    reconfigure(w, A, B)
    w.want("b")
    assert w.states()["b"] == "loading"


def test_a_new_model_appears_while_another_loads():
    w = world(A)
    waiter = w.want("a")
    reconfigure(w, A, B)
    assert w.states() == {"a": "loading", "b": "unloaded"}
    w.loaded("a")
    assert waiter in w.granted()


def test_a_removed_model_that_is_not_in_memory_is_forgotten_at_once():
    w = world(A, B)
    assert reconfigure(w, A) == [ev.Forget("b")]
    assert isinstance(w.refused(w.want("b")), ModelRemoved)


def test_a_removed_model_finishes_what_runs_and_admits_nothing_new():
    w = world(A, B)
    w.make_ready("a", leases=1)
    reconfigure(w, B)
    assert w.states()["a"] == "draining"
    assert isinstance(w.refused(w.want("a")), ModelRemoved)
    w.released("a")
    assert w.states()["a"] == "unloading"
    assert ev.Forget("a") in w.unloaded("a")
    assert w.states() == {"b": "unloaded"}


def test_a_removed_model_that_does_not_finish_is_cut_off():
    w = world(A, policy=Policy(unload_timeout=30.0))
    w.make_ready("a", leases=1)
    reconfigure(w)
    w.pass_time(30.0)
    assert w.states()["a"] == "unloading"


def test_those_who_wait_for_a_removed_model_are_told():
    w = world(Resident("a", 80), Resident("b", 80))
    w.make_ready("a", leases=1)
    waiter = w.want("b")
    reconfigure(w, Resident("a", 80))
    assert isinstance(w.refused(waiter), ModelRemoved)
    assert w.states() == {"a": "ready"}


def test_the_load_of_a_removed_model_is_cancelled_and_the_model_forgotten():
    w = world(A)
    waiter = w.want("a")
    assert ev.CancelLoad("a") in reconfigure(w)
    assert isinstance(w.refused(waiter), ModelRemoved)
    assert ev.Forget("a") in w.send(ev.LoadBroke("a", 1, "cancelled", "", cancelled=True))


def test_the_load_of_a_removed_model_that_gets_ready_all_the_same_is_undone():
    w = world(A)
    w.want("a")
    reconfigure(w)
    w.loaded("a")
    assert w.states() == {"a": "unloading"}


def test_a_removed_model_that_comes_back_otherwise_while_it_drains_is_served_by_its_next_load():
    w = world(A)
    w.make_ready("a", leases=1)
    reconfigure(w)
    reconfigure(w, replace(A, load_key="a2"))
    waiter = w.want("a")
    w.released("a")
    w.unloaded("a")
    assert w.states() == {"a": "loading"}
    w.loaded("a")
    assert waiter in w.granted()


def test_late_events_of_a_forgotten_model_change_nothing():
    w = world(A, B)
    w.make_ready("a", leases=1)
    reconfigure(w, B)
    w.send(ev.UnloadWanted("a", force=True))
    w.unloaded("a")
    for event in (
        ev.Released("a", 1),
        ev.LoadDone("a", 1),
        ev.LoadBroke("a", 1, "crashed", ""),
        ev.UnloadDone("a", 1),
        ev.EngineDied("a", 1, ""),
        ev.UnloadWanted("a"),
        ev.CancelLoadWanted("a"),
        ev.PolicyChanged("a", pinned=True),
    ):
        assert w.send(event) == []
    assert w.states() == {"b": "unloaded"}


def test_a_model_that_is_loaded_otherwise_now_drains_and_its_next_load_is_the_new_one():
    w = world(A)
    w.make_ready("a", leases=1)
    reconfigure(w, replace(A, weights=70, load_key="a2"))
    assert w.states() == {"a": "draining"}
    waiter = w.want("a")
    w.released("a")
    w.unloaded("a")
    assert w.states() == {"a": "loading"}
    assert w.model("a").need == 70
    w.loaded("a")
    assert waiter in w.granted()
    assert w.states() == {"a": "ready"}


def test_a_load_of_the_old_configuration_starts_again_for_those_who_wait():
    w = world(A)
    waiter = w.want("a")
    assert ev.CancelLoad("a") in reconfigure(w, replace(A, load_key="a2"))
    assert w.refused(waiter) is None
    w.send(ev.LoadBroke("a", 1, "cancelled", "", cancelled=True))
    assert (w.states(), w.generation("a")) == ({"a": "loading"}, 2)
    w.loaded("a")
    assert waiter in w.granted()


def test_an_old_load_that_gets_ready_all_the_same_serves_nobody():
    w = world(A)
    waiter = w.want("a")
    reconfigure(w, replace(A, load_key="a2"))
    w.loaded("a")
    assert waiter not in w.granted()
    w.unloaded("a")
    w.loaded("a")
    assert waiter in w.granted()


@pytest.mark.parametrize(("key", "state"), [("a1", "failed"), ("a2", "unloaded")])
def test_changed_files_clear_a_failure_and_the_same_ones_do_not(key, state):
    w = world(A)
    w.want("a")
    w.send(ev.LoadBroke("a", 1, "bad_files", "truncated"))
    reconfigure(w, replace(A, load_key=key))
    assert w.states() == {"a": state}
    assert (w.refused(w.want("a")) is None) == (state == "unloaded")


def test_what_was_measured_of_a_model_stays_as_long_as_its_files_do():
    w = world(A)
    w.want("a")
    w.now += 3.0
    w.send(ev.LoadDone("a", 1, weights=55))
    reconfigure(w, A)
    assert (w.model("a").weights, w.model("a").load_seconds) == (55, 3.0)
    reconfigure(w, replace(A, load_key="a2"))
    assert (w.model("a").weights, w.model("a").load_seconds) == (40, None)


def test_a_new_limit_applies_to_those_who_wait():
    w = world(Resident("a", 10), Resident("b", 10), policy=Policy(max_loaded=1))
    w.make_ready("a", leases=1)
    w.want("b")
    assert w.states()["b"] == "queued"
    reconfigure(w, Resident("a", 10), Resident("b", 10), policy=Policy(max_loaded=2))
    assert w.states()["b"] == "loading"


def test_a_lower_number_of_loaded_models_evicts_nobody_until_there_is_need():
    w = world(Resident("a", 10), Resident("b", 10), Resident("c", 10))
    for name in "ab":
        w.make_ready(name)
    models = [Resident(name, 10) for name in "abc"]
    reconfigure(w, *models, policy=Policy(max_loaded=1))
    assert w.states() == {"a": "ready", "b": "ready", "c": "unloaded"}
    w.want("c")
    assert w.states() == {"a": "unloading", "b": "unloading", "c": "queued"}


def test_the_size_of_the_new_configuration_stands_when_the_old_load_comes_late():
    w = world(Resident("a", 10, load_key="a1"), Resident("b", 30))
    w.want("a")
    reconfigure(w, Resident("a", 90, load_key="a2"), Resident("b", 30))
    assert Ledger.of(w.state, w.now).charges == {"a": 10}
    w.send(ev.LoadDone("a", 1, weights=10))
    assert w.model("a").need == 90
    assert w.model("a").load_seconds is None


def test_a_load_is_charged_with_what_it_was_let_in_with_until_it_is_gone():
    w = world(Resident("a", 80, load_key="a1"), Resident("b", 60), policy=Policy(max_loading=2))
    w.want("a")
    reconfigure(w, Resident("a", 10, load_key="a2"), Resident("b", 60))
    w.want("b")
    assert w.states()["b"] == "queued"


@pytest.mark.parametrize("reason", ["bad_files", "stalled"])
def test_a_load_of_the_old_configuration_that_fails_is_nothing_to_the_new_one(reason):
    w = world(A)
    w.want("a")
    reconfigure(w, replace(A, load_key="a2"))
    waiter = w.want("a")
    w.send(ev.LoadBroke("a", 1, reason, ""))
    assert w.refused(waiter) is None
    assert w.states() == {"a": "loading"}
    assert w.model("a").trouble is None


def test_a_removed_model_that_drains_for_another_has_its_deadline_too():
    w = world(Resident("a", 80), Resident("b", 80), policy=Policy(max_wait=20.0, unload_timeout=30.0))
    w.make_ready("a", leases=1)
    w.want("b", bound=None)
    w.pass_time(20.0)
    reconfigure(w, Resident("b", 80))
    w.pass_time(30.0)
    assert w.states()["a"] == "unloading"


def test_more_pinned_models_than_places_refuse_everybody_else_and_name_the_limit():
    w = world(*(Resident(name, 10, pinned=True) for name in "ab"), Resident("c", 10))
    w.make_ready("a")
    w.make_ready("b")
    reconfigure(w, *w.state.models.values(), policy=Policy(max_loaded=1))
    error = w.refused(w.want("c"))
    assert isinstance(error, ModelTooLarge)
    assert "residency.max_loaded" in str(error)


@pytest.mark.parametrize("other", [replace(A, load_key="a2"), None])
def test_a_change_that_is_taken_back_in_time_cuts_nobody_off(other):
    w = world(A, B)
    w.make_ready("a", leases=1)
    reconfigure(w, *([other] if other is not None else []), B)
    assert w.states()["a"] == "draining"
    reconfigure(w, A, B)
    assert w.states()["a"] == "ready"
    assert w.want("a") in w.granted()
    w.pass_time(1000.0)
    assert w.model("a").leases == 2


def test_an_operators_drain_goes_on_when_a_change_is_taken_back():
    w = world(A)
    w.make_ready("a", leases=1)
    reconfigure(w, replace(A, load_key="a2"))
    w.send(ev.UnloadWanted("a", until=w.now + 10.0))
    reconfigure(w, A)
    assert w.states()["a"] == "draining"
    w.pass_time(10.0)
    assert w.states()["a"] == "unloading"


def test_a_model_that_was_in_the_way_is_so_again_when_a_change_is_taken_back():
    w = world(Resident("a", 80, load_key="a1"), Resident("b", 80), policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    w.want("b", bound=None)
    w.pass_time(20.0)
    reconfigure(w, Resident("a", 80, load_key="a2"), Resident("b", 80))
    reconfigure(w, Resident("a", 80, load_key="a1"), Resident("b", 80))
    assert w.states()["a"] == "draining"
    w.pass_time(1000.0)
    assert w.states()["a"] == "draining"
    w.released("a")
    w.unloaded("a")
    assert w.states()["b"] == "loading"
