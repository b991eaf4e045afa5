"""A read that never returns holds nobody, and no second one begins behind it."""

import asyncio
import threading

import pytest

from mlxd.daemon.disk_thread import DiskStuck, DiskThread


async def test_what_a_read_gives_or_raises_comes_back():
    disk = DiskThread()
    assert await disk.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await disk.run(lambda: 1 // 0)
    with pytest.raises(TimeoutError, match="the mount"):
        await disk.run(lambda: raises(TimeoutError("the mount")))
    assert await disk.run(lambda: 8) == 8


def disk_threads():
    """Other tests may have left some."""
    return {thread for thread in threading.enumerate() if thread.name == "disk"}


def raises(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_read_that_is_stuck_is_told_until_it_ends(tries):
    others = disk_threads()
    disk, lost = DiskThread(patience=0.1), threading.Event()
    try:
        for _ in range(tries):
            with pytest.raises(DiskStuck, match="mount"):
                await disk.run(lost.wait)
        assert len(disk_threads() - others) == 1
    finally:
        lost.set()
        for thread in disk_threads() - others:
            thread.join(10)
    await asyncio.sleep(0)  # the event loop hears of the end
    assert await disk.run(lambda: "back") == "back"


class Reads:
    """Reads that end when the test lets them; `began` has their numbers in order, `threads` where they ran."""

    def __init__(self, count):
        self.began = asyncio.Queue()
        self.threads = set()
        self.may_end = [threading.Event() for _ in range(count)]
        self._loop = asyncio.get_running_loop()

    def __call__(self, number):
        self.threads.add(threading.current_thread())
        self._loop.call_soon_threadsafe(self.began.put_nowait, number)
        assert self.may_end[number].wait(20)
        return number


async def test_of_reads_that_wait_one_begins_when_another_has_ended():
    others = disk_threads()
    disk, reads = DiskThread(), Reads(4)
    calls = [asyncio.create_task(disk.run(lambda number=number: reads(number))) for number in range(4)]
    for number, call in enumerate(calls):
        assert await reads.began.get() == number
        for _ in range(20):
            await asyncio.sleep(0)
        # none waits for its turn; the one before may not be quite gone
        assert disk_threads() - others <= reads.threads
        assert len(reads.threads) == number + 1
        assert reads.began.empty()
        reads.may_end[number].set()
        assert await call == number


async def test_while_a_read_is_known_to_be_stuck_another_is_refused_at_once():
    others = disk_threads()
    disk, lost = DiskThread(patience=0.1), threading.Event()
    with pytest.raises(DiskStuck):
        await disk.run(lost.wait)
    [thread] = disk_threads() - others
    try:
        with pytest.raises(DiskStuck):
            disk.run(lambda: None).send(None)  # without waiting for anything
    finally:
        lost.set()
        thread.join(10)
    await asyncio.sleep(0)
    assert await disk.run(lambda: "back") == "back"
