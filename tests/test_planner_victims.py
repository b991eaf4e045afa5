"""Who leaves memory for whom and when, as far as other model daemons had it wrong, one test each."""

import pytest
from planning import world

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelNotLoaded, ModelTooLarge
from mlxd.registry.residency import Held, Policy, Purpose, Resident

A, B, C = Resident("a", 40), Resident("b", 40), Resident("c", 40)
BIG_A, BIG_B = Resident("a", 80), Resident("b", 80)


def test_a_model_at_work_is_never_a_victim():
    """Seen in llama.cpp #21678 and LM Studio #671, #1796: answers were cut off for another model."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a", leases=1)
    w.want("b")
    w.pass_time(10.0)
    assert w.states() == {"a": "ready", "b": "queued"}
    assert w.model("a").leases == 1


def test_a_model_is_not_loaded_beside_others_when_it_does_not_fit():
    """Seen in mlx-openai-server (read) and LM Studio #1796: the busy one stayed and the new one was loaded too."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a", leases=1)
    w.want("b")
    assert w.of(ev.StartLoad) == [ev.StartLoad("a", 1)]


def test_a_load_under_way_counts_and_is_no_victim():
    """Seen in llama.cpp PR #23640, #25528, #20137: the model that was loading was the least recently used."""
    w = world(BIG_A, BIG_B, policy=Policy(max_loading=2))
    w.want("a")
    w.want("b")
    assert w.states() == {"a": "loading", "b": "queued"}
    assert w.of(ev.StartUnload) == []
    assert w.of(ev.CancelLoad) == []


def test_the_old_model_is_gone_before_the_new_one_loads():
    """Seen in mlx-omni-server #75 and oMLX #1867: both were in memory for a moment, and the process was killed."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a")
    assert not [effect for effect in w.send(ev.Tick()) if isinstance(effect, ev.StartLoad)]
    w.want("b")
    assert w.states() == {"a": "unloading", "b": "queued"}
    w.unloaded("a")
    assert w.states()["b"] == "loading"


def test_a_gauge_that_reads_low_does_not_let_a_second_model_in():
    """Seen in oMLX #1623: the footprint of an idle model shrank, and nobody was evicted for the next."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a")
    w.memory(measured=5)
    w.want("b")
    assert w.states() == {"a": "unloading", "b": "queued"}


def test_what_engines_hold_beyond_their_weights_is_on_the_books():
    """Seen in oMLX #2319: answers of one model grew into the room that another was promised."""
    w = world(A, B)
    w.make_ready("a", leases=1)
    w.memory(held={"a": Held(40, kv=30)})
    w.want("b")
    assert w.states() == {"a": "ready", "b": "queued"}
    w.memory(held={"a": Held(40)})
    w.released("a")
    assert w.states() == {"a": "ready", "b": "loading"}


@pytest.mark.parametrize("seconds", [1.0, 40.0])
def test_memory_that_comes_back_late_is_waited_for(seconds):
    """Seen in oMLX #1459 and #1945: the system gave freed memory back after the next load was turned down."""
    w = world(BIG_A, BIG_B, policy=Policy(max_wait=20.0))
    w.make_ready("a")
    w.want("b", bound=None)
    w.memory(measured=80)
    w.unloaded("a", clean=False)
    assert w.states()["b"] == "queued"
    w.let_time_pass(seconds)
    w.looks_again(measured=0)
    assert w.states()["b"] == "loading"


def test_nobody_leaves_when_it_would_not_be_enough():
    """Seen in vllm-mlx (read) and LM Studio #1562: idle models were unloaded first, and then the load failed."""
    w = world(A, B, Resident("c", 70))
    w.make_ready("a")
    w.make_ready("b", leases=1)
    w.want("c")
    assert w.states() == {"a": "ready", "b": "ready", "c": "queued"}


def test_one_large_model_leaves_and_not_three_small_ones():
    """Seen in oMLX PR 3306: least recently used alone evicted three models where one was enough."""
    small = [Resident(name, 15) for name in ("x", "y", "z")]
    w = world(*small, Resident("large", 45), Resident("new", 50))
    for name in ("x", "y", "z", "large"):
        w.make_ready(name)
        w.now += 1.0
    w.now += 1000.0
    w.want("new")
    assert [effect.model for effect in w.of(ev.StartUnload)] == ["large"]


def test_a_long_answer_counts_as_use_until_its_end():
    """Seen in oMLX 0.5 (read): the time of the request's start decided who had been idle longest."""
    w = world(A, B, C)
    w.make_ready("a", leases=1)
    w.now += 10.0
    w.make_ready("b")
    w.now += 1000.0
    w.released("a")
    w.now += 1.0
    w.want("c")
    assert w.states() == {"a": "ready", "b": "unloading", "c": "queued"}


def test_how_a_model_was_loaded_does_not_protect_it():
    """Seen in LM Studio #644 and #2051: what a user had loaded by hand was never evicted."""
    w = world(BIG_A, BIG_B)
    w.want("a", Purpose.LOAD, bound=None)
    w.loaded("a")
    w.want("b")
    assert w.states() == {"a": "unloading", "b": "queued"}


def test_places_are_a_bound_of_their_own():
    """Seen in oMLX PR 730 and PR 3159: users wanted one model at a time, whatever fits."""
    w = world(Resident("a", 1), Resident("b", 1), policy=Policy(max_loaded=1))
    w.make_ready("a")
    w.want("b")
    assert w.states() == {"a": "unloading", "b": "queued"}


@pytest.mark.parametrize("reason", ["request", "max_wait", "ttl", "room", "guard"])
def test_a_pin_holds_against_every_reason(reason):
    """Seen in LocalAI #11101, ollama #7773 and #10948: each reason to evict had rules of its own."""
    w = world(Resident("a", 60, pinned=True, ttl=10.0), Resident("b", 30), Resident("c", 40))
    w.make_ready("a")
    w.make_ready("b", leases=1)
    match reason:
        case "request":
            w.want("c")
        case "max_wait":
            w.want("c", bound=None)
            w.pass_time(100.0)
        case "ttl":
            w.pass_time(100.0)
        case "room":
            w.send(ev.RoomNeeded(1, 50, "prefill"))
        case "guard":
            w.send(ev.RoomNeeded(1, 50, "memory_soft", partial=True))
    assert w.states()["a"] == "ready"


def test_a_pin_set_while_a_model_drains_for_another_holds():
    """Seen in LocalAI #11101: the pin was looked at in one place only."""
    w = world(A, B, C, policy=Policy(max_wait=20.0))
    w.make_ready("a", leases=1)
    w.now += 1.0
    w.make_ready("b", leases=1)
    w.want("c", bound=None)
    w.pass_time(20.0)
    (drained,) = [name for name, state in w.states().items() if state == "draining"]
    w.send(ev.PolicyChanged(drained, pinned=True))
    w.released(drained)
    assert w.states()[drained] == "ready"


def test_a_pinned_model_that_is_leaving_does_not_count_as_staying():
    """Seen in LM Studio #1562: a load was refused for the memory of a model that was going."""
    w = world(Resident("a", 80, pinned=True), BIG_B)
    w.make_ready("a")
    w.send(ev.UnloadWanted("a", force=True))
    waiter = w.want("b")
    w.unloaded("a")
    w.loaded("b")
    assert waiter in w.granted()


def test_a_pinned_model_is_let_in_by_the_same_rules():
    """Seen in oMLX 0.5 (probe): the preload of a pinned model of a petabyte was admitted."""
    w = world(Resident("a", 10**15, pinned=True))
    assert isinstance(w.refused(w.want("a", Purpose.LOAD, bound=None)), ModelTooLarge)


def test_without_autoload_requests_change_nothing():
    """Seen in ollama #7789: any client could swap the model that was in use."""
    w = world(A, B, policy=Policy(autoload=False))
    w.want("a", Purpose.LOAD, bound=None)
    w.loaded("a")
    before = w.states()
    assert isinstance(w.refused(w.want("b")), ModelNotLoaded)
    assert w.states() == before


# -- the time to live ---------------------------------------------------------------------------------------


def test_the_ttl_counts_from_the_end_of_the_last_answer():
    """Seen in llama-swap #25: it counted from the request's start and ended long answers."""
    w = world(Resident("a", 40, ttl=60.0))
    w.make_ready("a", leases=1)
    w.pass_time(500.0)
    w.released("a")
    w.pass_time(59.0)
    assert w.states() == {"a": "ready"}
    w.pass_time(1.0)
    assert w.states() == {"a": "unloading"}


def test_the_ttl_does_not_interrupt_a_load():
    """Seen in llama-swap #289: a load that took longer than the ttl was stopped by it."""
    w = world(Resident("a", 40, ttl=10.0))
    waiter = w.want("a", bound=None)
    for _ in range(100):
        w.pass_time(10.0)
    assert w.states() == {"a": "loading"}
    w.loaded("a")
    assert waiter in w.granted()


def test_a_preloaded_model_has_its_whole_ttl():
    """Seen in llama-swap (read): never used yet counted as last used at zero, and it went after one second."""
    w = world(Resident("a", 40, ttl=60.0))
    w.want("a", Purpose.LOAD, bound=None)
    w.pass_time(300.0)
    w.loaded("a")
    w.pass_time(59.0)
    assert w.states() == {"a": "ready"}
    assert w.tick() == 1360.0
    assert w.states() == {"a": "unloading"}


def test_a_model_that_is_never_used_has_an_end_too():
    """Seen in ollama #1339: what was loaded stayed when its timer had never been started."""
    w = world(Resident("a", 40, ttl=60.0))
    w.send(ev.Left(w.want("a")))
    w.loaded("a")
    while w.tick() is not None:
        pass
    assert w.states() == {"a": "unloading"}


@pytest.mark.parametrize("ttl", [2.3, 0.1, 60.7])
def test_the_moment_that_the_planner_names_is_late_enough(ttl):
    """A tick at exactly that moment must not find, by a rounded difference, that it is too early: none follows it."""
    w = world(Resident("a", 40, ttl=ttl))
    w.make_ready("a")
    w.tick()
    assert w.states() == {"a": "unloading"}
