"""The memory of images is bounded over all requests, in their order, and nobody waits for ever."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from doc_pages import page

from mlxd.daemon.api.image_room import ImageRoom
from mlxd.daemon.api.refusals import ImagesQueueFull
from mlxd.daemon.app import Daemon
from mlxd.daemon.settings import ModelsSettings, ServerSettings, Settings
from mlxd.memory.probe import SystemProbe


class Wanting:
    """Somebody who wants so many bytes; holds them until told to leave."""

    def __init__(self, room, count):
        self.has = asyncio.Event()
        self.leave = asyncio.Event()
        self.claim = None
        self.task = asyncio.ensure_future(self._hold(room, count))

    async def _hold(self, room, count):
        async with room.hold(count) as self.claim:
            self.has.set()
            await self.leave.wait()

    async def gone(self):
        self.leave.set()
        await self.task


async def settle():
    """Let everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_fits_goes_in_at_once():
    room = ImageRoom(lambda: 100)
    async with room.hold(60), room.hold(40):
        assert (room.held, room.free) == (100, 0)
    assert room.held == 0


async def test_one_that_does_not_fit_waits_and_nobody_passes_it():
    room = ImageRoom(lambda: 100)
    first = Wanting(room, 60)
    large, small = Wanting(room, 70), Wanting(room, 10)
    await settle()
    assert [each.has.is_set() for each in (first, large, small)] == [True, False, False]
    await first.gone()
    await settle()
    assert [large.has.is_set(), small.has.is_set()] == [True, True]
    assert room.held == 80
    await large.gone()
    await small.gone()
    assert room.held == 0


async def test_there_is_room_for_each_alone_however_large_it_is():
    room = ImageRoom(lambda: 100)
    huge, other = Wanting(room, 1000), Wanting(room, 1)
    await settle()
    assert (huge.has.is_set(), other.has.is_set(), room.free) == (True, False, 0)
    await huge.gone()
    await settle()
    assert other.has.is_set()
    await other.gone()


async def test_one_that_leaves_while_it_waits_lets_the_next_in():
    room = ImageRoom(lambda: 100)
    first, second, third = Wanting(room, 60), Wanting(room, 70), Wanting(room, 30)
    await settle()
    second.task.cancel()
    await settle()
    assert third.has.is_set()
    await first.gone()
    await third.gone()
    assert room.held == 0


async def test_one_that_is_cancelled_as_it_is_let_in_holds_nothing():
    room = ImageRoom(lambda: 100)
    first, second = Wanting(room, 60), Wanting(room, 70)
    await settle()
    first.leave.set()
    await first.task  # lets the second in, which has not run yet
    second.task.cancel()
    await settle()
    assert second.task.cancelled()
    assert room.held == 0


async def test_a_claim_may_grow_beyond_what_there_is_and_gives_all_back():
    room = ImageRoom(lambda: 100)
    async with AsyncExitStack() as held:
        claim = await held.enter_async_context(room.hold(50))
        claim.resize(500)
        assert (room.held, room.free) == (500, 0)
        other = Wanting(room, 50)
        await settle()
        assert not other.has.is_set()
        claim.resize(20)
        await settle()
        assert other.has.is_set()
    assert room.held == 50
    await other.gone()


async def test_what_waits_is_bounded_too():
    room = ImageRoom(lambda: 100)
    first, large = Wanting(room, 60), Wanting(room, 500)  # somebody may always be the first to wait
    await settle()
    with pytest.raises(ImagesQueueFull):
        async with room.hold(1):
            pass
    large.task.cancel()
    await settle()
    waiting = [Wanting(room, 50), Wanting(room, 50)]
    await settle()
    with pytest.raises(ImagesQueueFull):
        async with room.hold(1):
            pass
    for each in (first, *waiting):
        await each.gone()
    assert room.held == 0


async def test_the_daemons_room_is_an_eighth_of_its_soft_limit(tmp_path):
    settings = Settings(models=ModelsSettings(dirs=(tmp_path,)), server=ServerSettings(state_dir=tmp_path / "state"))
    daemon = Daemon(settings, SystemProbe(), hf_cache=None)
    room = daemon.services.image_room
    assert room.free == daemon.guard.limits.soft_bytes // 8
    assert "an eighth of `memory.soft`" in page("api")
    await daemon.close()


async def test_a_room_that_shrinks_still_serves_everybody():
    size = [100]
    room = ImageRoom(lambda: size[0])
    first, second = Wanting(room, 80), Wanting(room, 80)
    await settle()
    size[0] = 10
    await first.gone()
    await settle()
    assert second.has.is_set()
    await second.gone()
