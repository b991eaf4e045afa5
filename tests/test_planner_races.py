"""Races between requests, loads, unloads and time that other model daemons had, one test each."""

from planning import World, world

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelLoadFailed
from mlxd.registry.residency import Policy, Purpose, Resident

A, B, C = Resident("a", 40), Resident("b", 40), Resident("c", 40)
# Two of these do not fit together.
BIG_A, BIG_B, BIG_C = Resident("a", 80), Resident("b", 80), Resident("c", 80)


def serve(w: World, name: str) -> None:
    """All that is under way for a model ends well, and its leases are given back."""
    if w.states()[name] == "loading":
        w.loaded(name)
    while w.model(name).leases:
        w.released(name)


# -- unloads that meet requests -----------------------------------------------------------------------------


def test_a_request_just_before_the_ttl_keeps_the_model():
    """Seen in llama-swap #946: an unload by ttl and a request blocked each other for ever."""
    w = world(Resident("a", 40, ttl=60.0))
    w.make_ready("a")
    w.now += 60.0
    assert w.want("a") in w.granted()
    w.send(ev.Tick())
    assert w.states() == {"a": "ready"}
    assert w.of(ev.StartUnload) == []


def test_a_request_just_after_the_ttl_gets_the_next_load():
    """Seen in llama-swap #946, the other way round; LM Studio #634 had two instances then."""
    w = world(Resident("a", 40, ttl=60.0))
    w.make_ready("a")
    w.pass_time(60.0)
    waiter = w.want("a")
    assert w.states() == {"a": "unloading"}
    assert len(w.of(ev.StartLoad)) == 1
    w.unloaded("a")
    w.loaded("a")
    assert waiter in w.granted()
    assert len(w.of(ev.StartLoad)) == 2


def test_a_victim_is_not_kept_by_a_request_for_it():
    """Seen in ollama #17408: a request revived the victim, whose unload the load of another waited for."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a")
    for_b, for_a = w.want("b"), w.want("a")
    assert w.states() == {"a": "unloading", "b": "queued"}
    w.unloaded("a")
    assert w.states() == {"a": "queued", "b": "loading"}
    w.loaded("b")
    assert w.granted() >= {for_b}
    w.released("b")
    w.unloaded("b")
    w.loaded("a")
    assert for_a in w.granted()


def test_a_model_that_is_loaded_anew_is_not_kept_busy_by_steady_requests():
    """Seen in ollama PR #14407: a reload waited for an idle moment that never came."""
    w = world(Resident("a", 40, load_key="old"))
    w.make_ready("a", leases=1)
    w.reconfigure(Resident("a", 40, load_key="new"))
    late = w.want("a")
    assert late not in w.granted()
    w.released("a")
    w.unloaded("a")
    w.loaded("a")
    assert late in w.granted()


def test_a_request_never_gets_the_engine_that_is_closed():
    """Seen in llama.cpp #28698 (B) and oMLX #2431: requests went into a model that was stopping."""
    w = world(BIG_A, BIG_B)
    w.make_ready("a")
    w.want("b")
    old = w.generation("a")
    waiter = w.want("a")
    assert waiter not in w.granted()
    w.unloaded("a")
    serve(w, "b")
    w.unloaded("b")
    w.loaded("a")
    (grant,) = [grant for grant in w.of(ev.Grant) if grant.waiter_id == waiter]
    assert grant.generation > old


def test_a_fresh_model_is_not_evicted_before_the_request_that_it_was_loaded_for():
    """Seen in llama.cpp #28698 (A): between ready and the first use it looked idle."""
    w = world(BIG_A, BIG_B)
    first, second = w.want("a"), w.want("b")
    effects = w.loaded("a")
    assert [effect for effect in effects if isinstance(effect, ev.StartUnload)] == []
    assert w.granted() == {first}
    assert w.model("a").leases == 1
    w.released("a")
    assert w.states()["a"] == "unloading"
    assert w.refused(second) is None


def test_a_late_event_of_an_old_engine_leaves_the_new_one_alone():
    """Seen in ollama PR #10599: the expiry of an old runner deleted the entry of its successor, an orphan."""
    w = world(A)
    w.make_ready("a", leases=1)
    old = w.generation("a")
    w.send(ev.EngineDied("a", old, "crashed"))
    w.unloaded("a")
    w.want("a", Purpose.LOAD)
    w.loaded("a")
    w.want("a")
    before = w.model("a")
    for event in (ev.UnloadDone("a", old), ev.EngineDied("a", old, "again"), ev.Released("a", old)):
        assert w.send(event) == []
        assert w.model("a") == before


def test_a_late_event_from_before_a_model_was_removed_does_not_hit_it_when_it_is_back():
    """Seen in ollama PR #10599, by way of a reload: numbers that start again make old events current."""
    w = world(A)
    w.make_ready("a", leases=1)
    old = w.generation("a")
    w.reconfigure()
    w.send(ev.UnloadWanted("a", force=True))
    w.unloaded("a")
    w.reconfigure(A)
    w.make_ready("a", leases=1)
    w.send(ev.Released("a", old))  # the request that was cut off ends only now
    assert w.model("a").leases == 1


def test_an_engine_that_does_not_stop_is_abandoned_and_its_model_served_anew():
    """Seen in ollama #17428 and oMLX PR 1726: a runner stayed in `stopping` and requests hung behind it."""
    w = world(A)
    w.make_ready("a")
    w.send(ev.UnloadWanted("a"))
    waiter = w.want("a")
    w.unloaded("a", clean=False)
    w.loaded("a")
    assert waiter in w.granted()


def test_an_unload_of_a_busy_model_is_not_forgotten():
    """Seen in oMLX PR 3547: a pending unload was never tried again, and the model was `busy` for ever."""
    w = world(A)
    w.make_ready("a", leases=2)
    w.send(ev.UnloadWanted("a"))
    w.released("a")
    assert w.states() == {"a": "draining"}
    w.released("a")
    assert w.states() == {"a": "unloading"}


def test_two_unloads_of_one_model_are_one():
    """Seen in oMLX 0.5 (read): two at once took its bytes off the books twice."""
    w = world(A)
    w.make_ready("a", leases=1)
    for force in (False, True, True, False):
        w.send(ev.UnloadWanted("a", force))
    assert len(w.of(ev.StartUnload)) == 1
    w.unloaded("a")
    assert w.states() == {"a": "unloaded"}


def test_an_unload_does_not_wait_for_a_request_that_never_ends():
    """Seen in ollama #9617, #8969 and llama-swap PR #126: a stuck answer kept its model for ever."""
    w = world(A)
    w.make_ready("a", leases=1)
    w.send(ev.UnloadWanted("a", until=w.now + 30.0))
    assert w.tick() == w.now
    assert w.states() == {"a": "unloading"}


def test_a_load_that_was_too_far_along_to_be_stopped_does_not_stay():
    """Seen in oMLX 0.5 (probe): an unload during a load was refused or lost, and the model came up regardless."""
    w = world(A)
    w.want("a")
    w.send(ev.UnloadWanted("a"))
    w.loaded("a")
    assert w.states() == {"a": "unloading"}


# -- loads --------------------------------------------------------------------------------------------------


def test_requests_and_an_operator_share_one_load():
    """Seen in oMLX #62: the same model was loaded twice."""
    w = world(A)
    waiters = {w.want("a"), w.want("a", Purpose.LOAD), w.want("a")}
    assert w.of(ev.StartLoad) == [ev.StartLoad("a", 1)]
    w.loaded("a")
    assert w.granted() == waiters
    assert w.model("a").leases == 2


def test_the_first_requester_may_leave_without_hurting_the_rest():
    """Seen in ollama #8398: its cancel stopped the load that others waited for."""
    w = world(A)
    first, second = w.want("a"), w.want("a")
    w.send(ev.Left(first))
    assert w.of(ev.CancelLoad) == []
    w.loaded("a")
    assert w.granted() == {second}


def test_a_load_that_everybody_left_stops_only_when_another_is_wanted():
    """Seen in llama-swap #727: a load that nobody waited for held up the one that somebody did."""
    w = world(BIG_A, BIG_B)
    w.send(ev.Left(w.want("a")))
    assert w.of(ev.CancelLoad) == []
    waiter = w.want("b")
    w.send(ev.LoadBroke("a", 1, "cancelled", "", cancelled=True))
    w.loaded("b")
    assert waiter in w.granted()


def test_a_cancelled_load_gives_its_room_back():
    """Seen in vllm-mlx (read): a load that was cancelled kept its reservation and its followers hung."""
    w = world(BIG_A, BIG_B)
    follower = w.want("a")
    w.send(ev.CancelLoadWanted("a"))
    assert isinstance(w.refused(follower), ModelLoadFailed)
    waiter = w.want("b")
    w.send(ev.LoadBroke("a", 1, "cancelled", "", cancelled=True))
    assert w.states() == {"a": "unloaded", "b": "loading"}
    w.loaded("b")
    assert waiter in w.granted()


def test_a_load_can_be_cancelled_while_it_runs():
    """Seen in llama.cpp PR #25528 and llama-swap #1068: the cancel was heeded when the load was over."""
    w = world(A)
    w.want("a")
    assert ev.CancelLoad("a") in w.send(ev.CancelLoadWanted("a"))
    assert w.states() == {"a": "loading"}


def test_a_stalled_load_gives_its_claim_back():
    """Seen in oMLX #3446: later loads were refused for the memory of one that had stalled."""
    w = world(BIG_A, BIG_B)
    w.want("a")
    waiter = w.want("b")
    w.send(ev.LoadBroke("a", 1, "stalled", "no bytes for 120 s"))
    assert w.states() == {"a": "failed", "b": "loading"}
    w.loaded("b")
    assert waiter in w.granted()


def test_those_who_wait_hear_of_a_failed_load_at_once():
    """Seen in llama.cpp #24464 and #19885: they waited for ever."""
    w = world(A)
    waiters = [w.want("a"), w.want("a")]
    w.send(ev.LoadBroke("a", 1, "out_of_memory", "x"))
    assert all(isinstance(w.refused(waiter), ModelLoadFailed) for waiter in waiters)


def test_a_failure_wears_off():
    """Seen in oMLX 0.5 (probe) and llama-swap #92: one transient error and the model was refused for good."""
    w = world(A, policy=Policy(retry_backoff=5.0))
    w.want("a")
    w.send(ev.LoadBroke("a", 1, "bad_files", "still downloading"))
    w.pass_time(5.0)
    waiter = w.want("a")
    w.loaded("a")
    assert waiter in w.granted()
    assert w.model("a").trouble is None


def test_a_crashed_engine_is_not_started_again_at_once_by_every_request():
    """Seen in llama-swap (read): crash, restart, crash, without end."""
    w = world(A, policy=Policy(retry_backoff=5.0))
    for _ in range(2):
        w.make_ready("a")
        w.dies_and_goes("a")
    assert isinstance(w.refused(w.want("a")), ModelLoadFailed)
    assert len(w.of(ev.StartLoad)) == 2
    w.pass_time(5.0)
    w.want("a")
    assert len(w.of(ev.StartLoad)) == 3


def test_models_that_are_found_during_a_load_leave_it_alone():
    """Seen in oMLX #2307: a scan of the folders replaced the entry, and the load became an orphan."""
    w = world(BIG_A)
    waiter = w.want("a")
    w.reconfigure(BIG_A, BIG_B)
    assert w.states() == {"a": "loading", "b": "unloaded"}
    second = w.want("b")
    w.loaded("a")
    assert waiter in w.granted()
    assert w.states() == {"a": "ready", "b": "queued"}
    w.released("a")
    w.unloaded("a")
    w.loaded("b")
    assert second in w.granted()


def test_a_model_that_vanishes_during_its_load_stays_on_the_books_until_it_is_gone():
    """Seen in oMLX #3446 and (read) in its reload: the counter went to zero under a load, and memory was lost."""
    w = world(BIG_A, BIG_B)
    w.want("a")
    w.reconfigure(BIG_B)
    waiter = w.want("b")
    assert w.states() == {"a": "loading", "b": "queued"}
    w.loaded("a")
    assert w.states() == {"a": "unloading", "b": "queued"}
    w.unloaded("a")
    w.loaded("b")
    assert w.states() == {"b": "ready"}
    assert waiter in w.granted()
