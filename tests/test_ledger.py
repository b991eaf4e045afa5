"""The books: what each model is charged with, and what is free."""

from dataclasses import replace

from planning import world

from mlxd.registry import events as ev
from mlxd.registry.ledger import Ledger
from mlxd.registry.residency import Held, MemoryReading, Policy, Resident

A, B = Resident("a", 30, kv_floor=10), Resident("b", 40)


def test_loads_and_unloads_in_flight_are_charged():
    w = world(A, B, policy=Policy(max_loading=2))
    w.make_ready("a")
    w.send(ev.UnloadWanted("a", force=True))
    w.want("b")
    assert w.states() == {"a": "unloading", "b": "loading"}
    assert Ledger.of(w.state, w.now).charges == {"a": 40, "b": 40}
    assert Ledger.of(w.state, w.now).free == 20


def test_a_model_is_charged_with_what_it_holds_once_that_is_more_than_it_was_let_in_with():
    w = world(A)
    w.make_ready("a", leases=1)
    w.state = replace(w.state, memory=MemoryReading(100, "memory.ceiling", 0, 0, held={"a": Held(30, kv=5)}))
    assert Ledger.of(w.state, w.now).charges == {"a": 40}
    w.state = replace(w.state, memory=MemoryReading(100, "memory.ceiling", 0, 0, held={"a": Held(30, kv=45)}))
    assert Ledger.of(w.state, w.now).charges == {"a": 75}


def test_what_a_model_has_promised_to_its_requests_is_charged():
    w = world(A)
    w.make_ready("a", leases=1)
    w.memory(held={"a": Held(30, kv=5, promised=25)})
    assert Ledger.of(w.state, w.now).charges == {"a": 60}


def test_the_kv_cache_of_others_keeps_a_load_waiting():
    w = world(A, B)
    w.make_ready("a", leases=1)
    w.state = replace(w.state, memory=MemoryReading(100, "memory.ceiling", 0, 0, held={"a": Held(30, kv=45)}))
    w.want("b")
    assert w.states()["b"] == "queued"


def test_a_load_measures_the_weights_for_the_next_one():
    w = world(Resident("a", 30, kv_floor=10))
    w.want("a")
    w.send(ev.LoadDone("a", 1, weights=60))
    assert w.model("a").need == 70
    assert Ledger.of(w.state, w.now).charges == {"a": 70}


def test_the_books_are_empty_when_nothing_is_resident():
    w = world(A, B)
    w.make_ready("a")
    w.make_ready("b")
    for name in "ab":
        w.send(ev.UnloadWanted(name, force=True))
        w.unloaded(name)
    assert Ledger.of(w.state, w.now).charges == {}
    assert Ledger.of(w.state, w.now).free == 100


def test_kept_prefixes_are_free_for_models_and_used_until_they_are_given_up():
    memory = MemoryReading(100, "memory.ceiling", measured=60, base=10, prefixes=15)
    w = world(A)
    w.state = replace(w.state, memory=memory)
    assert Ledger.of(w.state, w.now).free == 40
    assert memory.unused == 25
