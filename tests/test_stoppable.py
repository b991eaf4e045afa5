"""Threads for work that may have to be stopped: used again, one work each, and gone when it was stopped."""

import threading
import time
from concurrent.futures import Future

import pytest

from mlxd.engines import stoppable
from mlxd.engines.stoppable import StoppableThreads, Stopped


def done(threads, work):
    """What comes of the work."""
    end = Future()
    threads.start(work, end.set_result)
    return end.result(10).result(10)


def on_thread(threads):
    return done(threads, threading.get_ident)


def test_a_thread_is_used_again_and_two_works_have_two():
    threads = StoppableThreads("used")
    first = on_thread(threads)
    assert [on_thread(threads) for _ in range(5)] == [first] * 5
    begun, go, end = threading.Event(), threading.Event(), Future()
    threads.start(lambda: (begun.set(), go.wait(10)), end.set_result)
    assert begun.wait(10)
    other = on_thread(threads)
    assert other != first
    go.set()
    end.result(10)
    assert on_thread(threads) in (first, other)


def test_whoever_is_told_of_an_end_may_start_more_on_the_same_thread():
    threads, idents, over = StoppableThreads("more"), [], Future()

    def more(result):
        idents.append(result.result())
        if len(idents) == 5:
            over.set_result(None)
        else:
            threads.start(threading.get_ident, more)

    threads.start(threading.get_ident, more)
    over.result(10)
    assert len(set(idents)) == 1


def test_what_work_raises_comes_back_and_its_thread_goes_on():
    threads = StoppableThreads("raises")
    first = on_thread(threads)
    with pytest.raises(ZeroDivisionError):
        done(threads, lambda: 1 // 0)
    assert on_thread(threads) == first


def test_stopped_work_ends_and_takes_its_thread_with_it():
    threads, begun, end = StoppableThreads("stopped"), threading.Event(), Future()

    def forever():
        begun.set()
        while True:
            time.sleep(0.001)

    running = threads.start(forever, end.set_result)
    [thread] = [each for each in threading.enumerate() if each.name == "stopped"]
    assert begun.wait(10)
    running.stop()
    with pytest.raises(Stopped):
        end.result(10).result(10)
    thread.join(10)
    assert not thread.is_alive()
    assert on_thread(threads)


def test_a_thread_that_nobody_uses_ends(monkeypatch):
    monkeypatch.setattr(stoppable, "LINGER", 0.05)
    threads = StoppableThreads("lingers")
    first = on_thread(threads)
    [thread] = [each for each in threading.enumerate() if each.ident == first]
    thread.join(10)
    assert not thread.is_alive()
    assert on_thread(threads)


def test_work_that_comes_as_a_thread_wants_to_leave_is_done(monkeypatch):
    monkeypatch.setattr(stoppable, "LINGER", 0.0005)
    threads = StoppableThreads("leaves")
    for _ in range(300):
        assert done(threads, lambda: 7) == 7
        time.sleep(0.0005)
