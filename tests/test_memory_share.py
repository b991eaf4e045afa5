"""How engines share memory: a promise is given once, and kept from everybody else."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

from mlxd.engines.memory_share import Brake, MemoryShare


class Woken:
    """Counts how often it was called."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def test_two_that_claim_the_same_bytes_do_not_both_get_them():
    for _ in range(50):
        share = MemoryShare(lambda: 100)
        stakes, start = [share.stake("a"), share.stake("b")], Barrier(2)

        def claim(stake, start=start):
            start.wait()
            return stake.claim(60)

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(claim, stakes))
        assert sorted(answers, key=str) == [40, None]
        assert share.spare() == 40


def test_nobody_measures_while_another_claims():
    inside, go = Event(), Event()
    measured = []

    def headroom() -> int:
        measured.append(inside.is_set())
        inside.set()
        go.wait(10)
        return 100

    share = MemoryShare(headroom)
    first, second = share.stake("a"), share.stake("b")
    answers = []
    threads = [Thread(target=lambda one=one: answers.append(one.claim(60))) for one in (first, second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(10)
    assert answers == [None, 40]


def test_a_claim_is_for_all_sequences_of_an_engine_and_takes_the_place_of_the_last_one():
    share = MemoryShare(lambda: 100)
    a, b = share.stake("a"), share.stake("b")
    assert a.claim(60) is None
    assert a.claim(90) is None
    assert b.room() == 10
    assert a.room() == 100


def test_a_claim_that_fails_changes_nothing():
    share = MemoryShare(lambda: 100)
    a, b = share.stake("a"), share.stake("b")
    a.claim(30)
    assert b.claim(71) == 70
    assert a.claim(101) == 100
    assert (share.spare(), b.room()) == (70, 70)


def test_what_is_left_may_be_less_than_nothing_and_then_nothing_is_promised():
    share = MemoryShare(lambda: -5)
    assert share.stake("a").claim(1) == -5
    assert share.spare() == -5


def test_without_a_limit_everything_is_there_and_the_promise_is_known():
    share = MemoryShare()
    a = share.stake("a")
    assert a.claim(10**15) is None
    assert (a.room(), a.spare(), a.growth_left(), a.most(), a.limit) == (None, None, None, None, "")
    assert share.stake("b").others_run()


def test_what_is_being_loaded_is_kept_from_prompts():
    share = MemoryShare(lambda: 100)
    share.reserve("load of x", 70)
    a = share.stake("a")
    assert a.claim(31) == 30
    assert a.others_run()
    share.reserve("load of x", 0)
    assert a.claim(100) is None
    assert not a.others_run()


def test_the_end_of_a_load_wakes_those_who_wait():
    share, woken = MemoryShare(lambda: 100), Woken()
    share.reserve("load of x", 70)
    share.stake("a").wake(woken)
    share.reserve("load of x", 30)
    assert woken.times == 0
    share.reserve("load of x", 0)
    assert woken.times == 1
    share.stake("a").wake(woken)
    share.reserve("load of y", 0)
    assert woken.times == 1


def test_a_change_wakes_everybody_once():
    share = MemoryShare()
    wakers = [Woken(), Woken()]
    for name, waker in zip("ab", wakers, strict=True):
        share.stake(name).wake(waker)
    share.changed()
    share.changed()
    assert [waker.times for waker in wakers] == [1, 1]


def test_one_that_waits_twice_is_called_once():
    share, woken = MemoryShare(), Woken()
    a = share.stake("a")
    a.wake(woken)
    a.wake(woken)
    share.changed()
    assert woken.times == 1


def test_a_waker_may_wait_again_at_once():
    share, times = MemoryShare(), []
    a = share.stake("a")

    def again() -> None:
        times.append(1)
        a.wake(again)

    a.wake(again)
    share.changed()
    share.changed()
    assert len(times) == 2


def test_changes_from_many_threads_lose_no_waker_and_call_none_twice():
    share, rounds, threads = MemoryShare(), 200, 4
    calls = [Woken() for _ in range(rounds)]
    start = Barrier(threads + 1)

    def change() -> None:
        start.wait()
        for _ in range(rounds):
            share.changed()

    workers = [Thread(target=change) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    for waker in calls:
        share.stake("a").wake(waker)
    for worker in workers:
        worker.join(10)
    share.changed()
    assert {waker.times for waker in calls} == {1}


def test_fewer_sequences_wake_the_others_and_tokens_that_take_what_was_promised_do_not():
    share, woken = MemoryShare(), Woken()
    a, b = share.stake("a"), share.stake("b")
    for promised, running, wakes in ((50, 2, 0), (60, 2, 0), (60, 1, 1), (40, 1, 0), (40, 1, 0), (0, 0, 1)):
        woken.times = 0
        b.wake(woken)
        a.set(promised, running)
        assert woken.times == wakes, (promised, running)


def test_others_run_while_they_have_sequences_or_promises():
    share = MemoryShare()
    a, b = share.stake("a"), share.stake("b")
    assert not a.others_run()
    b.set(0, 1)
    assert a.others_run()
    assert not b.others_run()
    b.set(10, 0)
    assert a.others_run()
    b.set(0, 0)
    assert not a.others_run()


def test_an_engine_that_is_gone_leaves_nothing_and_wakes_the_others():
    share, own, other = MemoryShare(lambda: 100), Woken(), Woken()
    a, b = share.stake("a"), share.stake("b")
    a.set(80, 3)
    a.wake(own)
    b.wake(other)
    a.forget()
    assert (own.times, other.times) == (0, 1)
    assert share.spare() == 100
    assert not b.others_run()
    a.forget()


def test_an_engine_that_answers_late_takes_nothing_from_the_next_one_of_its_model():
    share, woken = MemoryShare(lambda: 100), Woken()
    old, new = share.stake("m"), share.stake("m")
    old.claim(30)
    assert new.claim(70) is None
    new.wake(woken)
    old.forget()
    assert share.spare() == 30
    assert woken.times == 1


def test_a_brake_is_seen_by_all_and_wakes_them():
    share, woken = MemoryShare(), Woken()
    a = share.stake("a")
    a.wake(woken)
    share.brake_to(Brake(hold=True))
    assert a.brake.hold
    assert not a.brake.slow
    assert woken.times == 1
