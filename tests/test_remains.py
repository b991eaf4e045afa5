"""What engines leave behind: it is used until it is seen to be free, or for a few seconds, and then the next load's."""

import pytest
from planning import World, world

from mlxd.registry import events as ev
from mlxd.registry.ledger import Ledger
from mlxd.registry.planner import REMEASURE
from mlxd.registry.remains import SETTLE
from mlxd.registry.residency import Held, Policy, Resident

A, B, C = Resident("a", 80), Resident("b", 80), Resident("c", 40)


def free(w: World) -> int:
    return Ledger.of(w.state, w.now).free


def late(w: World) -> list[int]:
    return [residue.bytes for residue in w.state.remains.late]


def b_waits(*models: Resident, limit: int = 100) -> World:
    """The first model has left for b, and all of its memory is measured still."""
    w = world(A, B, *models, limit=limit)
    w.make_ready("a")
    w.want("b", bound=None)
    w.memory(measured=80)
    w.unloaded("a")
    assert w.states()["b"] == "queued"
    return w


def b_loads_after(w: World) -> float:
    """Seconds until b loads, when the planner is told at the moments that it names."""
    began = w.now
    while w.states()["b"] != "loading":
        assert w.tick() is not None, "nobody looks again"
    return w.now - began


def test_what_is_seen_to_be_free_is_free_at_once():
    w = world(A, B)
    w.make_ready("a")
    w.want("b")
    w.memory(measured=0)
    w.unloaded("a")
    assert w.states()["b"] == "loading"


def test_what_never_comes_back_keeps_a_load_waiting_for_a_few_seconds():
    assert b_loads_after(b_waits()) == SETTLE


def test_what_comes_back_meanwhile_is_seen_soon():
    w = b_waits()
    w.tick()
    assert w.looks_again(measured=20) <= REMEASURE
    assert w.states()["b"] == "loading"


def test_what_comes_back_in_part_is_waited_for_no_longer():
    w = b_waits()
    waited = w.looks_again(measured=30)
    assert waited + b_loads_after(w) == SETTLE


def test_whoever_comes_late_waits_for_what_is_left_of_the_time():
    w = world(A, B)
    w.make_ready("a")
    w.leaves("a", measured=80)
    w.now += SETTLE - 0.5
    w.want("b")
    assert b_loads_after(w) == 0.5


def test_a_load_that_fits_beside_it_does_not_wait():
    w = world(A, B, limit=200)
    w.make_ready("a")
    w.leaves("a", measured=80)
    w.want("b")
    assert w.states()["b"] == "loading"


def test_a_model_in_memory_is_granted_while_something_settles():
    w = world(A, B, Resident("ready", 15))
    w.make_ready("ready")
    w.make_ready("a")
    w.want("b")
    w.memory(measured=95)
    w.unloaded("a")
    assert w.states() == {"a": "unloaded", "b": "queued", "ready": "ready"}
    assert w.want("ready") in w.granted()


def test_nobody_else_leaves_for_what_comes_back_late():
    w = world(A, B, Resident("idle", 15, kv_floor=0))
    w.make_ready("idle")
    w.make_ready("a")
    w.want("b")
    w.memory(measured=95)
    w.unloaded("a")
    w.let_time_pass(SETTLE)
    assert [evicted.model for evicted in w.decided("evict")] == ["a"]
    assert w.states() == {"a": "unloaded", "b": "loading", "idle": "ready"}


def test_nothing_drains_for_what_comes_back_late():
    w = world(A, B, Resident("busy", 15), policy=Policy(max_wait=0.0))
    w.make_ready("busy", leases=1)
    w.make_ready("a")
    w.want("b")
    w.memory(measured=95)
    w.unloaded("a")
    assert w.states() == {"a": "unloaded", "b": "queued", "busy": "ready"}


def test_more_than_the_limit_is_never_in_use_for_a_load():
    """It would take what has settled, but who says that it can: nobody starts while too much is measured."""
    w = world(A, C)
    w.make_ready("a")
    w.leaves("a", measured=101)
    w.now += SETTLE
    w.want("c")
    assert w.states()["c"] == "queued"
    assert free(w) == -1
    assert w.looks_again(measured=100) <= REMEASURE
    assert w.states()["c"] == "loading"
    assert w.decided("load")[-1].inputs["free_bytes"] == 80


def test_idle_models_leave_for_what_is_above_the_limit_and_not_for_what_has_settled():
    w = world(Resident("old", 50), Resident("idle", 40), Resident("new", 50), limit=100)
    w.make_ready("old")
    w.make_ready("idle")
    w.leaves("old", measured=90)
    w.now += SETTLE
    w.memory(measured=101)
    w.want("new")
    assert [evicted.model for evicted in w.decided("evict")] == ["idle"]
    w.memory(measured=61)
    w.unloaded("idle")
    assert w.states()["new"] == "loading"


# -- what loads do with it ----------------------------------------------------------------------------------


def test_a_load_that_takes_other_memory_than_was_left_is_seen():
    w = b_waits(Resident("c", 10), limit=100)
    w.let_time_pass(SETTLE)
    w.memory(measured=160)
    w.loaded("b")
    w.want("c")
    assert free(w) == -60
    assert w.states()["c"] == "queued"


def test_a_load_uses_up_what_was_left():
    w = world(A, C, Resident("d", 10), limit=200)
    w.make_ready("a")
    w.leaves("a", measured=80)
    w.now += SETTLE
    assert free(w) == 200
    w.want("c")
    assert w.model("c").into == 40
    # it took as much of others' memory as of what was left: only the other half of that is there for the next
    w.memory(measured=120)
    w.loaded("c")
    assert free(w) == 120
    w.want("d")
    assert late(w) == [30]


def test_a_load_that_did_not_need_all_gives_back_the_rest():
    w = world(A, Resident("b", 60))
    w.make_ready("a")
    w.leaves("a", measured=80)
    w.now += SETTLE
    w.want("b")
    assert late(w) == [20]
    w.send(ev.LoadDone("b", w.generation("b"), weights=40))
    assert sum(late(w)) == 40
    w.now += SETTLE
    assert free(w) == 60


def test_a_load_gives_back_no_more_than_it_was_given():
    w = world(Resident("b", 60))
    w.memory(measured=30)
    w.want("b")
    w.memory(measured=70)
    w.send(ev.LoadDone("b", 1, weights=40))
    w.now += SETTLE
    assert (late(w), free(w)) == ([], 30)


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_load_that_breaks_leaves_what_it_had(cancelled):
    w = world(A, C, Resident("all", 100))
    w.make_ready("a")
    w.leaves("a", measured=80)
    w.now += SETTLE
    w.want("c")
    if cancelled:
        w.send(ev.CancelLoadWanted("c"))
    w.broke("c", cancelled=cancelled)
    assert sum(late(w)) == 80
    w.now += SETTLE
    w.want("all")
    assert w.states()["all"] == "loading"


def test_what_an_engine_held_beyond_its_charge_settles_too():
    w = world(Resident("a", 40), Resident("b", 90))
    w.make_ready("a", leases=1)
    w.memory(measured=75, held={"a": Held(40, kv=25)})
    w.send(ev.UnloadWanted("a", force=True))
    w.memory(held={})
    w.unloaded("a", held=40 + 25 + 10)
    w.want("b")
    w.let_time_pass(SETTLE)
    assert w.states()["b"] == "loading"


def test_answers_that_grow_into_their_own_room_hide_nothing():
    w = world(Resident("a", 40), Resident("b", 30, kv_floor=10), limit=100)
    w.make_ready("a")
    w.make_ready("b", leases=1)
    w.leaves("a", measured=70, held={"b": Held(30)})
    w.now += SETTLE
    assert free(w) == 60
    w.memory(measured=90, held={"b": Held(30, kv=30)})
    w.send(ev.Tick())
    assert free(w) == 40


def test_a_promise_that_is_not_kept_takes_nothing_from_what_was_left():
    w = world(Resident("a", 40), Resident("b", 30), limit=100)
    w.make_ready("a")
    w.make_ready("b", leases=1)
    w.leaves("a", measured=70, held={"b": Held(30)})
    w.now += SETTLE
    w.memory(held={"b": Held(30, promised=20)})
    w.send(ev.Tick())
    assert free(w) == 50
    w.memory(held={"b": Held(30)})
    assert free(w) == 70


# -- whose is it ---------------------------------------------------------------------------------------------


def test_what_has_stayed_longest_is_what_stays():
    """The next model's memory comes and goes beside it, and starts no new wait."""
    w = world(Resident("a", 50), Resident("b", 40), Resident("c", 100))
    w.make_ready("a")
    w.leaves("a", measured=50)
    w.now += SETTLE
    w.memory(measured=90)
    w.make_ready("b", leases=0)
    # the load may have used it up; what b had is gone before it reports, and the old is there still
    w.memory(measured=130)
    w.leaves("b", measured=50)
    w.want("c")
    w.let_time_pass(SETTLE)
    assert w.states()["c"] == "loading"


def test_an_unload_that_gives_back_before_it_reports_takes_nothing_from_what_was_left():
    w = world(Resident("a", 50), Resident("b", 40), Resident("c", 90), limit=200)
    w.make_ready("b")
    w.make_ready("a")
    w.leaves("a", measured=90)
    w.now += SETTLE
    w.send(ev.UnloadWanted("b", force=True))
    w.memory(measured=50)
    w.send(ev.Tick())
    assert late(w) == [50]
    w.unloaded("b")
    assert [(residue.model, residue.bytes) for residue in w.state.remains.late] == [("a", 50)]


def test_what_another_has_that_is_on_its_way_out_is_not_what_a_load_left():
    w = world(Resident("a", 40), Resident("b", 40), limit=100)
    w.make_ready("a")
    w.want("b")
    w.memory(measured=40)
    w.send(ev.UnloadWanted("a", force=True))
    w.broke("b")
    assert late(w) == []
    w.now += SETTLE
    w.unloaded("a")
    assert [(residue.model, residue.due - w.now) for residue in w.state.remains.late] == [("a", SETTLE)]


def test_what_has_settled_is_kept_as_one():
    w = world(A, Resident("small", 5))
    w.make_ready("a")
    w.leaves("a", measured=80)
    for _ in range(10):
        w.now += SETTLE
        w.make_ready("small")
        w.leaves("small", measured=80)
    assert late(w) == [75, 5]


# -- abandoned engines ---------------------------------------------------------------------------------------


def abandoned(limit: int = 100) -> World:
    """An engine was left to itself with 80 bytes."""
    w = world(A, B, C, limit=limit)
    w.make_ready("a")
    w.send(ev.UnloadWanted("a", force=True))
    w.memory(measured=80)
    w.unloaded("a", clean=False)
    return w


def test_what_an_abandoned_engine_has_stays_used_until_it_is_seen_to_be_free():
    w = abandoned()
    w.want("b", bound=None)
    w.let_time_pass(100.0)
    assert w.states()["b"] == "queued"
    assert w.looks_again(measured=0) <= REMEASURE
    assert w.states()["b"] == "loading"
    assert w.state.remains.lost == 0


def test_what_an_abandoned_engine_has_is_not_what_the_next_one_left():
    w = abandoned(limit=200)
    w.want("b")
    w.send(ev.Tick())
    w.memory(measured=160, held={"b": Held(80)})
    w.loaded("b")
    w.leaves("b", measured=80, held={})
    w.let_time_pass(100.0)
    assert free(w) == 120
    w.memory(measured=110)
    w.send(ev.Tick())
    assert free(w) == 90


def test_what_came_back_beside_an_abandoned_engine_does_not_hide_what_others_take_then():
    w = abandoned(limit=200)
    w.want("b")
    w.memory(measured=160, held={"b": Held(80)})
    w.loaded("b")
    w.leaves("b", measured=120, held={})
    w.now += SETTLE
    assert free(w) == 120
    w.memory(measured=90)
    w.send(ev.Tick())
    w.memory(measured=120)
    assert free(w) == 90


def test_what_an_abandoned_engine_has_stays_used_while_another_unloads():
    """What that one still has cannot be told from what was left; what is lost is neither."""
    w = world(Resident("a", 30), Resident("b", 40), Resident("c", 20), Resident("d", 40))
    w.make_ready("c")
    w.make_ready("a")
    w.make_ready("b")
    w.send(ev.UnloadWanted("a", force=True))
    w.memory(measured=90, held={"b": Held(40), "c": Held(20)})
    w.unloaded("a", clean=False)
    w.memory(held={"b": Held(40)})
    w.leaves("c", measured=90)
    w.now += SETTLE
    w.memory(measured=80)
    w.send(ev.UnloadWanted("b", force=True))
    assert free(w) == 30
    w.want("d")
    assert w.states()["d"] == "queued"


def test_what_an_abandoned_engine_gave_back_is_not_held_against_it_for_ever():
    w = abandoned(limit=200)
    w.want("b")
    w.memory(measured=80, held={"b": Held(80)})
    w.loaded("b")
    assert w.state.remains.lost == 0
    w.leaves("b", measured=80, held={})
    w.now += SETTLE
    assert free(w) == 200


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_load_that_is_stuck_keeps_what_it_has(cancelled):
    w = world(A, B)
    w.want("a")
    if cancelled:
        w.send(ev.CancelLoadWanted("a"))
    w.memory(measured=50)
    w.broke("a", cancelled=cancelled, clean=False)
    w.want("b", bound=None)
    w.let_time_pass(100.0)
    assert w.states()["b"] == "queued"


# -- rooms ---------------------------------------------------------------------------------------------------


def test_room_is_answered_when_the_bytes_are_seen_to_be_free():
    w = world(C, Resident("b", 40))
    w.make_ready("c")
    w.send(ev.RoomNeeded(7, 30, "prefill"))
    w.memory(measured=40)
    assert ev.RoomAnswered(7) not in w.unloaded("c")
    w.tick()
    assert ev.RoomAnswered(7) not in w.effects
    assert w.looks_again(measured=0) <= REMEASURE
    assert ev.RoomAnswered(7) in w.effects


def test_room_is_answered_once_what_was_left_has_settled():
    w = world(C)
    w.make_ready("c")
    w.send(ev.RoomNeeded(7, 30, "prefill"))
    w.memory(measured=40)
    w.unloaded("c")
    began = w.now
    while ev.RoomAnswered(7) not in w.effects:
        assert w.tick() is not None, "nobody looks again"
    assert w.now - began == SETTLE


@pytest.mark.parametrize("partial", [True, False])
def test_nobody_leaves_for_bytes_that_are_on_their_way(partial):
    w = world(C, Resident("b", 40))
    w.make_ready("c")
    w.make_ready("b")
    w.leaves("c", measured=80)
    effects = w.send(ev.RoomNeeded(7, 40, "prefill", partial=partial))
    assert w.states()["b"] == "ready"
    assert (ev.RoomAnswered(7) in effects) == partial, "the guard measures again by itself"
    assert partial or w.looks_again(measured=40) <= REMEASURE
    assert partial or ev.RoomAnswered(7) in w.effects


def test_bytes_that_have_not_come_back_in_time_are_made_up_for_by_others():
    w = world(C, Resident("b", 40))
    w.make_ready("c")
    w.make_ready("b")
    w.leaves("c", measured=80)
    w.now += SETTLE
    w.send(ev.RoomNeeded(7, 40, "memory_soft", partial=True))
    assert w.states()["b"] == "unloading"


def test_a_room_waits_for_no_unload_that_came_later():
    w = world(C, Resident("b", 40))
    w.make_ready("c")
    w.make_ready("b")
    w.send(ev.RoomNeeded(7, 40, "prefill"))
    (left,) = [name for name, state in w.states().items() if state == "unloading"]
    other = "b" if left == "c" else "c"
    w.memory(measured=80)
    w.unloaded(left)
    w.now += SETTLE - 1.0
    w.leaves(other, measured=80)
    w.now += 1.0
    assert ev.RoomAnswered(7) in w.send(ev.Tick())
