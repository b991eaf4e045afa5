"""A read that never returns holds nobody, and no second one begins behind it."""

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


def raises(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_read_that_is_stuck_is_told_until_it_ends(tries):
    disk, lost = DiskThread(patience=0.01), threading.Event()
    try:
        for _ in range(tries):
            with pytest.raises(DiskStuck, match="mount"):
                await disk.run(lost.wait)
        assert sum(thread.name == "disk" for thread in threading.enumerate()) == 1
    finally:
        lost.set()
        for thread in threading.enumerate():
            if thread.name == "disk":
                thread.join(10)
    assert await disk.run(lambda: "back") == "back"
