"""The threads of image processors: few, whatever runs on them, and gone with the lanes."""

import gc
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import pytest

from mlxd.engines.image_threads import THREADS, ImageThreads

# A processor that computes with MLX, for many images, each asked for by a thread of its own as prompts are.
MANY = """
import threading
from pathlib import Path
import mlx.core as mx
import numpy as np
from mlxd.engines.image_threads import ImageThreads

images = ImageThreads()
def ask():
    assert images.run(lambda: np.array(mx.arange(64) * 2).sum()) == 64 * 63
def asked(times):
    for _ in range(times):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    return len(list(Path("/proc/self/task").iterdir()))
first, last = asked(10), asked(40)
# the second of them may have had nothing to do at first, and a thread that was just joined may not have left yet
assert last <= first + 3, (first, last)
assert images.close(10)
"""


@pytest.fixture
def images():
    threads = ImageThreads()
    yield threads
    assert threads.close(10)


def test_work_runs_elsewhere_and_its_result_and_its_error_come_back(images):
    assert images.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        images.run(lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="of the work"):
        images.run(lambda: (_ for _ in ()).throw(TimeoutError("of the work")))
    assert images.run(lambda: "still here") == "still here"


class Large:
    """What an error may have met on its way."""


def test_an_error_is_gone_with_whoever_caught_it_and_all_that_it_met():
    images, met = ImageThreads(1), Large()
    gone = weakref.ref(met)

    def fail(met: Large) -> None:
        raise ZeroDivisionError(met)

    def ask(met: Large) -> None:
        with suppress(ZeroDivisionError):
            images.run(lambda: fail(met))

    gc.disable()
    try:
        ask(met)
        del met
        # the thread is done with it, too
        images.run(lambda: None)
        assert gone() is None
    finally:
        gc.enable()
        assert images.close(10)


def test_as_many_run_at_once_as_there_are_threads(images):
    met = threading.Barrier(THREADS)
    with_others = [threading.Thread(target=images.run, args=(met.wait,)) for _ in range(THREADS)]
    for thread in with_others:
        thread.start()
    for thread in with_others:
        thread.join(10)
    assert not any(thread.is_alive() for thread in with_others)
    assert not met.broken


def test_threads_that_are_busy_do_not_hold_up_the_end(images):
    begun, release = threading.Event(), threading.Event()
    waiting = threading.Thread(target=images.run, args=(lambda: begun.set() or release.wait(),))
    waiting.start()
    assert begun.wait(10)
    assert not images.close(0.05)
    release.set()
    waiting.join(10)
    assert images.close(10)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_what_computes_with_mlx_leaves_no_thread_behind_and_the_process_ends_well():
    ended = subprocess.run([sys.executable, "-c", MANY], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
