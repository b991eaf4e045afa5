"""What the planner does when engines die: who is served all the same, who is refused, and what comes back by itself."""

from dataclasses import replace

import pytest
from planning import World, world

from mlxd.registry import events as ev
from mlxd.registry.deaths import QUARANTINE, STABLE
from mlxd.registry.errors import ModelLoadFailed, ModelRemoved, ModelTooLarge
from mlxd.registry.planner import next_deadline
from mlxd.registry.residency import Policy, Purpose, Resident

A = Resident("a", 40, load_key="a1")
PINNED = replace(A, pinned=True)
BACKOFF = 5.0


def dead(*models: Resident, times: int, policy: Policy | None = None) -> World:
    """A world whose first model has just died so often in a row."""
    w = world(*models, policy=policy or Policy(retry_backoff=BACKOFF))
    name = models[0].name
    for _ in range(times):
        w.load_again(name)
        w.dies_and_goes(name, "poison")
    return w


# -- one death -----------------------------------------------------------------------------------------------


def test_what_ran_on_a_dead_engine_is_over_and_the_engine_closed():
    w = world(A)
    w.make_ready("a", leases=2)
    effects = w.dies("a", "r1", exit_code=3)
    assert ev.StartUnload("a", 1) in effects
    assert (w.states(), w.model("a").leases) == ({"a": "unloading"}, 0)
    (abort,) = w.decided("abort")
    assert abort.reason == "engine_crashed"
    assert abort.inputs == {
        "leases": 2,
        "committed_bytes": 40,
        "deaths": 1,
        "facts": {"exit_code": 3},
        "suspects": {"r1": 1},
    }


def test_a_model_that_died_is_failed_and_says_why():
    w = world(A)
    w.make_ready("a")
    w.dies_and_goes("a", "r1", signal="SIGSEGV", step_age_s=0.5)
    trouble = w.model("a").trouble
    assert w.states() == {"a": "failed"}
    assert (trouble.reason, trouble.attempts, trouble.retry_at) == ("crashed", 1, w.now)
    assert trouble.message == (
        "its process ended; killed by SIGSEGV; 0.5 s after its last sign of life; suspect requests: r1 (in 1 of 1)"
    )


def test_after_the_first_death_the_next_request_loads_at_once():
    w = dead(A, times=1)
    waiter = w.want("a")
    assert w.states() == {"a": "loading"}
    w.loaded("a")
    assert waiter in w.granted()
    assert w.model("a").trouble is None


def test_those_who_wait_for_a_draining_model_are_served_after_its_first_death():
    w = world(A)
    w.make_ready("a", leases=1)
    w.send(ev.UnloadWanted("a"))
    waiter = w.want("a")
    w.dies("a")
    late = w.want("a")
    w.unloaded("a")
    assert w.states() == {"a": "loading"}
    w.loaded("a")
    assert w.granted() >= {waiter, late}


def test_a_load_after_a_death_is_a_restart_and_has_its_inputs():
    w = world(A)
    w.make_ready("a")
    w.dies_and_goes("a", "r1", exit_code=3)
    assert [load.reason for load in w.decided("load")] == ["lease"]
    w.want("a")
    (restart,) = w.decided("restart")
    assert (restart.model, restart.reason, restart.for_request) == ("a", "lease", "r2")
    assert restart.inputs == {
        "needed_bytes": 40,
        "free_bytes": 100,
        "deaths": 1,
        "facts": {"exit_code": 3},
        "suspects": {"r1": 1},
    }
    assert len(w.decided("load")) == 1


def test_an_engine_that_is_abandoned_after_its_death_has_still_crashed():
    w = world(A)
    w.make_ready("a")
    w.dies("a")
    w.unloaded("a", clean=False)
    assert w.model("a").trouble.reason == "crashed"
    assert w.want("a") not in w.granted()
    assert w.states() == {"a": "loading"}


# -- several in a row ----------------------------------------------------------------------------------------


def test_from_the_second_death_on_it_backs_off_twice_as_long_each_time():
    w = dead(A, times=1)
    for times, wait in enumerate((5.0, 10.0, 20.0), start=2):
        w.load_again("a")
        w.dies_and_goes("a")
        error = w.refused(w.want("a"))
        assert isinstance(error, ModelLoadFailed)
        assert (error.failure.reason, error.failure.attempts, error.retry_after) == ("crashed", times, wait)
        assert f"died {times} times in a row" in error.failure.message
        w.now += wait - 1
        assert isinstance(w.refused(w.want("a")), ModelLoadFailed)
        w.now += 1


def test_those_who_wait_are_refused_from_the_second_death_on():
    w = dead(A, times=1)
    w.load_again("a", leases=1)
    w.send(ev.UnloadWanted("a"))
    waiter = w.want("a")
    w.dies("a")
    error = w.refused(waiter)
    assert isinstance(error, ModelLoadFailed)
    assert (error.failure.reason, error.retry_after) == ("crashed", BACKOFF)
    assert [refusal.reason for refusal in w.decided("refuse")] == ["crashed"]
    w.unloaded("a")
    assert w.states() == {"a": "failed"}


def test_after_many_deaths_it_is_in_quarantine_for_the_longest_back_off():
    w = dead(A, times=QUARANTINE)
    error = w.refused(w.want("a"))
    assert isinstance(error, ModelLoadFailed)
    assert error.retry_after == w.state.policy.max_backoff
    assert f"poison (in {QUARANTINE} of {QUARANTINE})" in str(error)
    assert "`mlxd load a` tries again" in str(error)
    assert [refusal.reason for refusal in w.decided("refuse")][-1] == "quarantined"


def test_a_try_after_quarantine_counts_on():
    w = dead(A, times=QUARANTINE)
    w.pass_time(w.state.policy.max_backoff)
    w.want("a")
    w.loaded("a")
    w.dies_and_goes("a")
    assert w.model("a").trouble.attempts == QUARANTINE + 1
    assert w.model("a").trouble.retry_at == w.now + w.state.policy.max_backoff


def test_suspects_are_counted_over_deaths():
    w = world(A)
    for suspects in (("r1", "poison"), ("poison", "r2")):
        w.load_again("a")
        w.dies_and_goes("a", *suspects)
    assert w.decided("abort")[-1].inputs["suspects"] == {"poison": 2, "r2": 1, "r1": 1}


# -- deaths in a load ----------------------------------------------------------------------------------------


def test_a_death_in_a_load_backs_off_from_the_first_on_and_counts():
    w = world(A)
    for times, wait in enumerate((5.0, 10.0, 20.0, 40.0, 300.0), start=1):
        waiter = w.want("a")
        w.broke("a", "crashed")
        error = w.refused(waiter)
        assert isinstance(error, ModelLoadFailed)
        assert (error.failure.reason, error.failure.attempts, error.retry_after) == ("crashed", times, wait)
        w.pass_time(wait)
    assert [refusal.reason for refusal in w.decided("refuse")] == ["crashed"] * 4 + ["quarantined"]
    assert len(w.decided("restart")) == 4


def test_deaths_at_work_and_in_loads_count_together():
    w = dead(A, times=1)
    w.want("a")
    w.send(ev.LoadBroke("a", w.generation("a"), "crashed", "x", facts={"exit_code": 3}))
    trouble = w.model("a").trouble
    assert (trouble.attempts, trouble.retry_at) == (2, w.now + 2 * BACKOFF)
    assert trouble.message == "x; exit code 3; died 2 times in a row; suspect requests: poison (in 1 of 2)"


def test_a_load_that_fails_otherwise_is_no_death():
    w = dead(A, times=1)
    w.want("a")
    w.broke("a", "bad_files")
    assert (w.model("a").trouble.reason, w.model("a").deaths.count) == ("bad_files", 1)
    w.pass_time(300.0)
    w.want("a")
    assert [load.reason for load in w.decided("load")] == ["lease", "lease"]


# -- what is forgotten ---------------------------------------------------------------------------------------


def served(w: World, seconds: float) -> None:
    w.load_again("a")
    w.now += seconds
    w.dies_and_goes("a")


def test_deaths_are_forgotten_when_a_load_has_served_for_long():
    w = dead(A, times=3)
    served(w, STABLE)
    assert w.model("a").trouble.attempts == 1


def test_deaths_are_not_forgotten_before_that():
    w = dead(A, times=3)
    served(w, STABLE - 1)
    assert w.model("a").trouble.attempts == 4


def test_time_in_memory_counts_over_loads_that_ended_well():
    w = dead(A, times=3)
    for _ in range(2):
        w.load_again("a")
        w.now += STABLE / 2
        w.leaves("a")
    assert w.model("a").deaths is None


def test_changed_files_or_configuration_forget_deaths():
    w = dead(A, times=QUARANTINE)
    w.reconfigure(replace(A, load_key="a2"))
    assert (w.states(), w.model("a").deaths) == ({"a": "unloaded"}, None)
    w.make_ready("a")
    w.dies_and_goes("a")
    assert w.model("a").trouble.attempts == 1


def test_another_ttl_forgets_no_deaths():
    w = dead(A, times=3)
    w.reconfigure(replace(A, ttl=60.0))
    assert (w.model("a").deaths.count, w.model("a").trouble.attempts) == (3, 3)


def test_an_operators_load_ends_a_quarantine_and_forgets_deaths():
    w = dead(A, times=QUARANTINE)
    w.load("a")
    assert w.states() == {"a": "loading"}
    w.loaded("a")
    w.dies_and_goes("a")
    assert w.model("a").trouble.attempts == 1


@pytest.mark.parametrize("back", [None, A])
def test_the_death_of_an_engine_that_is_not_what_is_configured_is_nothing_to_the_model(back):
    w = dead(A, times=2)
    w.load_again("a", leases=1)
    w.reconfigure(replace(A, load_key="a2"))
    waiter = w.want("a")
    w.dies("a")
    assert w.refused(waiter) is None
    w.unloaded("a")
    assert (w.states(), w.model("a").trouble, w.model("a").deaths) == ({"a": "loading"}, None, None)


def test_a_removed_model_that_dies_is_forgotten():
    w = world(PINNED)
    w.make_ready("a", leases=1)
    w.reconfigure()
    w.dies("a")
    assert ev.Forget("a") in w.unloaded("a")
    assert isinstance(w.refused(w.want("a")), ModelRemoved)


# -- pinned models -------------------------------------------------------------------------------------------


def test_a_pinned_model_comes_back_by_itself_after_its_first_death():
    w = world(PINNED)
    w.make_ready("a")
    w.dies("a")
    w.unloaded("a")
    assert w.states() == {"a": "loading"}
    (restart,) = w.decided("restart")
    assert (restart.reason, restart.for_request) == ("pinned", None)
    effects = w.loaded("a")
    assert w.states() == {"a": "ready"}
    assert (w.model("a").leases, w.state.waiters) == (0, ())
    assert not [effect for effect in effects if isinstance(effect, ev.Grant)]


def test_a_pinned_model_comes_back_by_itself_when_its_back_off_is_over():
    w = dead(PINNED, times=2)
    assert w.states() == {"a": "failed"}
    assert next_deadline(w.state, w.now) == w.now + BACKOFF
    assert w.tick() == w.now
    assert w.states() == {"a": "loading"}


def test_a_pinned_model_that_died_in_its_load_comes_back_by_itself():
    w = world(PINNED)
    w.want("a")
    w.broke("a", "crashed")
    w.tick()
    assert w.states() == {"a": "loading"}


def test_nothing_comes_back_by_itself_from_quarantine():
    w = world(PINNED)
    w.load("a")
    for _ in range(QUARANTINE):
        w.loaded("a")
        w.dies_and_goes("a")
        w.tick()
    assert w.states() == {"a": "failed"}
    assert next_deadline(w.state, w.now) is None
    w.pass_time(1e6)
    assert w.states() == {"a": "failed"}
    w.want("a")
    assert w.states() == {"a": "loading"}


def test_a_crash_loop_of_a_pinned_model_ends():
    w = world(PINNED)
    w.load("a")
    for _ in range(100):
        if w.states()["a"] == "loading":
            w.broke("a", "crashed")
        w.tick()
    assert len(w.of(ev.StartLoad)) == QUARANTINE


def test_a_model_that_is_not_pinned_does_not_come_back_by_itself():
    w = dead(A, times=2)
    assert next_deadline(w.state, w.now) is None
    w.pass_time(1e6)
    assert w.states() == {"a": "failed"}


def test_a_pinned_model_whose_load_fails_otherwise_waits_for_a_request():
    w = dead(PINNED, times=1)
    w.broke("a", "bad_files")
    w.pass_time(1e6)
    assert w.states() == {"a": "failed"}


@pytest.mark.parametrize("times", [1, 2])
def test_what_an_operator_wants_gone_does_not_come_back_by_itself(times):
    w = dead(PINNED, times=times - 1)
    w.load_again("a")
    w.dies("a")
    w.send(ev.UnloadWanted("a"))
    w.unloaded("a")
    w.pass_time(1e6)
    assert w.states() == {"a": "failed"}


def test_a_pinned_model_that_dies_in_an_operators_drain_does_not_come_back_by_itself():
    w = world(PINNED)
    w.make_ready("a", leases=1)
    w.send(ev.UnloadWanted("a"))
    w.dies_and_goes("a")
    w.pass_time(1e6)
    assert w.states() == {"a": "failed"}


@pytest.mark.parametrize("by_file", [True, False])
def test_a_model_that_is_not_pinned_any_more_does_not_come_back_by_itself(by_file):
    w = dead(PINNED, times=2)
    if by_file:
        w.reconfigure(A)
    else:
        w.send(ev.PolicyChanged("a", pinned=False))
    w.send(ev.PolicyChanged("a", pinned=True))
    w.pass_time(1e6)
    assert w.states() == {"a": "failed"}


def test_a_pinned_model_that_waits_for_room_waits_no_more_once_it_is_not_pinned():
    w = world(replace(PINNED, weights=80), Resident("b", 80))
    w.make_ready("a")
    w.dies("a")
    w.want("b", bound=None)
    w.unloaded("a")
    assert w.states() == {"a": "queued", "b": "loading"}
    w.send(ev.PolicyChanged("a", pinned=False))
    assert (w.states()["a"], next_deadline(w.state, w.now)) == ("unloaded", None)


def test_a_pinned_model_that_comes_back_gets_room_like_one_that_is_wanted():
    w = world(replace(PINNED, weights=80), Resident("b", 80))
    w.make_ready("a")
    w.dies("a")
    w.want("b", bound=None)
    w.unloaded("a")
    w.loaded("b")
    assert w.states() == {"a": "queued", "b": "ready"}
    w.pass_time(w.state.policy.max_wait)
    assert w.states() == {"a": "queued", "b": "draining"}
    w.released("b")
    w.unloaded("b")
    assert w.states()["a"] == "loading"


def test_a_pinned_model_that_cannot_fit_any_more_does_not_try_again_and_again():
    w = world(replace(PINNED, weights=80), Resident("b", 40, pinned=True))
    w.make_ready("a")
    w.dies("a")
    w.want("b")
    w.unloaded("a")
    w.loaded("b")
    assert w.states() == {"a": "unloaded", "b": "ready"}
    assert [refusal.reason for refusal in w.decided("refuse")] == ["never_fits"]
    assert next_deadline(w.state, w.now) is None
    assert isinstance(w.refused(w.want("a")), ModelTooLarge)


def test_nobody_tries_for_a_pinned_model_that_was_refused_to_a_reader():
    w = world(replace(PINNED, weights=80))
    w.make_ready("a")
    w.dies("a")
    waiter = w.want("a")
    w.memory(limit=50)
    w.unloaded("a")
    assert isinstance(w.refused(waiter), ModelTooLarge)
    assert w.send(ev.Tick()) == []
    assert w.states() == {"a": "unloaded"}


def test_a_changed_configuration_brings_a_pinned_model_back_at_once():
    w = dead(PINNED, times=3)
    w.reconfigure(replace(PINNED, load_key="a2"))
    assert w.states() == {"a": "loading"}
    assert w.decided("load")[-1].reason == "pinned"


def test_the_wish_of_a_reader_that_left_is_the_pins_again():
    w = world(replace(PINNED, weights=80), Resident("b", 80))
    w.make_ready("a")
    w.dies("a")
    w.want("b", bound=None)
    waiter = w.want("a")
    w.unloaded("a")
    w.send(ev.Left(waiter))
    assert w.states() == {"a": "queued", "b": "loading"}
    assert [own.purpose for own in w.state.waiters if own.model == "a"] == [Purpose.PINNED]


def test_nothing_comes_back_while_the_daemon_stops():
    w = dead(PINNED, times=2)
    w.send(ev.Closing())
    assert next_deadline(w.state, w.now) is None
    w.pass_time(1e6)
    assert w.states() == {"a": "failed"}


def test_a_death_while_the_daemon_stops_is_unloaded_and_stays_so():
    w = world(PINNED)
    w.make_ready("a", leases=1)
    w.send(ev.Closing())
    w.dies_and_goes("a")
    assert (w.states(), w.state.waiters) == ({"a": "failed"}, ())


def test_a_pinned_model_that_waits_when_the_daemon_stops_waits_no_more():
    w = world(replace(PINNED, weights=80), Resident("b", 80))
    w.make_ready("a")
    w.dies("a")
    w.want("b", bound=None)
    w.unloaded("a")
    w.send(ev.Closing())
    assert w.state.waiters == ()
    assert w.states()["a"] == "unloaded"
