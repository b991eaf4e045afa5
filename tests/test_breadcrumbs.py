"""What is dangerous is on the disk before it begins; a disk that does not work holds nobody up."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest
from api_fakes import HELLO, last, serving
from crumbs import PATIENCE, Disk, asking, model, registry_of
from fake_engine import Workshop
from structlog.testing import capture_logs

from mlxd.daemon.breadcrumbs import Breadcrumbs
from mlxd.daemon.breadcrumbs_record import VERSION, ResidentModel, RunRecord, Suspect
from mlxd.daemon.breadcrumbs_work import MAX_FINGERPRINTS
from mlxd.engines.fingerprint import fingerprint

LONG = 1000.0


class Kept:
    """Breadcrumbs on a disk of its own. With a `pause` so long nothing is written that nobody waits for."""

    def __init__(self, last=None, *, boot="boot", pause=LONG, patience=PATIENCE):
        self.disk = Disk()
        self.now = 0.0
        self.records = 0
        self.crumbs = Breadcrumbs(
            self.disk, boot, last, pause=pause, patience=patience, clock=lambda: self.now, wall_clock=self._count
        )

    def _count(self):
        """The wall clock, which is looked at once for each record that is made."""
        self.records += 1
        return 7.0

    def follow(self, workshop, *names, **options):
        registry = registry_of(workshop, *(model(name) for name in names), **options)
        self.crumbs.follow(registry)
        registry.before_load = self.crumbs.before_load
        registry.on_models = self.crumbs.on_models
        return registry

    async def works_on(self, name, *requests):
        async with self.crumbs.at_work(name, requests):
            pass


@asynccontextmanager
async def running(kept):
    """Its writes in the background, after the first."""
    task = asyncio.create_task(kept.crumbs.run())
    try:
        await kept.disk.next()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_load_begins_when_it_is_on_the_disk():
    kept, workshop = Kept(), Workshop(hold_loads=True)
    registry = kept.follow(workshop, "a", "b")
    kept.disk.works.clear()
    load = asyncio.create_task(registry.load("a"))
    assert (await kept.disk.tried()).loading == ("a",)
    assert registry.model("a").state == "loading"
    assert not workshop.last("a").loaded
    workshop.last("a").loading.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not workshop.last("a").loaded
    kept.disk.works.set()
    await load
    assert (await kept.disk.next()).loading == ("a",)


async def test_a_request_goes_to_an_idle_model_when_it_is_on_the_disk_with_its_fingerprint():
    kept, began = Kept(), asyncio.Event()
    request = asking(1, 2, 3)

    async def ask():
        async with kept.crumbs.at_work("a", (request,)):
            began.set()

    kept.disk.works.clear()
    asked = asyncio.create_task(ask())
    assert (await kept.disk.tried()).at_work == {"a": (fingerprint(request),)}
    for _ in range(20):
        await asyncio.sleep(0)
    assert not began.is_set()
    kept.disk.works.set()
    await asked
    assert began.is_set()


async def test_a_request_to_a_model_at_work_waits_for_nothing():
    kept = Kept()
    async with kept.crumbs.at_work("a", (asking(1),)):
        kept.disk.works.clear()
        await kept.works_on("a", asking(2))
        assert kept.disk.written.qsize() == 1
        kept.disk.works.set()
        await kept.works_on("b", asking(3))
        await kept.disk.next()
        assert set((await kept.disk.next()).at_work) == {"a", "b"}


async def test_a_thousand_requests_in_a_row_write_once():
    kept = Kept()
    for number in range(1000):
        await kept.works_on("a", asking(number))
    assert kept.disk.written.qsize() == 1


async def test_a_model_counts_as_at_work_until_it_was_idle_for_a_while_with_what_it_was_told_to_be_at():
    kept = Kept()
    await kept.works_on("a", asking(1))
    kept.now = LONG - 1
    await kept.works_on("b", asking(2))
    kept.now = LONG + 1
    await kept.works_on("c", asking(3))
    at_work = [(await kept.disk.next()).at_work for _ in range(3)]
    first, second, third = (fingerprint(asking(number)) for number in (1, 2, 3))
    assert at_work == [{"a": (first,)}, {"a": (first,), "b": (second,)}, {"b": (second,), "c": (third,)}]


async def test_an_idle_model_is_told_to_be_idle():
    kept = Kept(pause=0.01)
    async with running(kept):
        await kept.works_on("a", asking(1))
        assert set((await kept.disk.next()).at_work) == {"a"}
        kept.now = 1.0
        assert (await kept.disk.next()).at_work == {}


async def test_what_did_not_change_is_not_written():
    kept = Kept()
    for _ in range(3):
        await kept.crumbs.before_load("a")
    assert kept.disk.written.qsize() == 1


async def test_those_who_come_during_a_write_share_the_next():
    kept = Kept()
    kept.disk.works.clear()
    asked = [asyncio.create_task(kept.works_on(f"m{number}", asking(number))) for number in range(20)]
    await kept.disk.tried()
    kept.disk.works.set()
    await asyncio.gather(*asked)
    assert kept.records == 2


async def test_of_many_requests_the_latest_are_told_apart():
    kept = Kept()
    requests = [asking(number) for number in range(MAX_FINGERPRINTS + 5)]
    async with kept.crumbs.at_work("a", requests):
        told = (await kept.disk.next()).at_work["a"]
    assert told == tuple(fingerprint(request) for request in reversed(requests[5:]))


async def test_the_end_of_a_load_is_told_without_a_pause():
    kept, workshop = Kept(), Workshop()
    registry = kept.follow(workshop, "a")
    async with running(kept):
        await registry.load("a")
        assert (await kept.disk.next()).loading == ("a",)
        after = await kept.disk.next()
        assert (after.loading, after.resident) == ((), (ResidentModel("a", "text"),))


async def test_whoever_leaves_while_it_is_written_leaves_the_next_one_waiting_for_the_disk():
    kept = Kept()
    await kept.works_on("a", asking(1))
    await kept.disk.next()
    await kept.disk.tried()
    kept.now = LONG + 1  # it is idle by now
    kept.disk.works.clear()
    left = asyncio.create_task(kept.works_on("b", asking(2)))
    assert set((await kept.disk.tried()).at_work) == {"b"}
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    kept.disk.works.set()
    await kept.works_on("a", asking(3))
    await kept.disk.next()
    assert set((await kept.disk.next()).at_work) == {"a", "b"}


# ---- a disk that does not work


async def test_a_full_disk_fails_nothing_is_told_once_and_is_tried_again():
    kept, workshop = Kept(pause=0.01), Workshop()
    registry = kept.follow(workshop, "a")
    kept.disk.error = OSError(28, "No space left on device")
    with capture_logs() as logs:
        for number in range(5):
            await kept.works_on("a", asking(number))
        await registry.load("a")
        assert kept.disk.tries.qsize() == 1
        task = asyncio.create_task(kept.crumbs.run())
        for _ in range(3):
            await kept.disk.tried()
        kept.disk.error = None
        assert (await kept.disk.next()).resident == (ResidentModel("a", "text"),)
        task.cancel()
    assert [(line["event"], "No space" in line["error"]) for line in logs if "breadcrumbs" in line["event"]] == [
        ("breadcrumbs.unwritten", True)
    ]


async def test_a_disk_that_does_not_answer_is_waited_for_once():
    kept = Kept(patience=0.05)
    kept.disk.works.clear()
    loop = asyncio.get_running_loop()
    with capture_logs() as logs:
        started = loop.time()
        await kept.works_on("a", asking(1))
        first = loop.time() - started
        for number in range(100):
            await kept.works_on(f"m{number}", asking(1))
    # the second hundred would take five seconds
    assert 0.04 < first < 2
    assert loop.time() - started < 4
    assert [line["error"] for line in logs] == ["the disk does not answer"]
    kept.disk.works.set()
    await kept.disk.next()


async def test_a_daemon_that_ends_while_the_disk_does_not_answer_ends():
    kept = Kept(patience=0.05)
    kept.disk.works.clear()
    async with asyncio.timeout(PATIENCE):
        await kept.crumbs.end()
    kept.disk.works.set()


# ---- the end of a run, and what the next one makes of it


async def test_a_run_that_ended_in_order_says_so_and_what_was_ready_then_the_last_used_first():
    kept, workshop = Kept(), Workshop()
    registry = kept.follow(workshop, "a", "b", "c", limit=1000)
    for name in ("a", "b", "c"):
        await registry.load(name)
    async with registry.lease("a"), kept.crumbs.at_work("a", (asking(1),)):
        kept.crumbs.closing()
    assert await registry.close(0)
    await kept.crumbs.end()
    while not (record := await kept.disk.next()).ended:
        pass
    assert (record.loading, record.at_work) == ((), {})
    assert [resident.name for resident in record.resident] == ["a", "c", "b"]


SUSPECTED = RunRecord(
    VERSION,
    "boot",
    1.0,
    loading=("a",),
    at_work={"b": ("f" * 12,)},
    resident=(ResidentModel("r", "text"), ResidentModel("a", "text")),
)


async def test_an_unclean_end_is_told_with_all_that_is_known_of_it():
    kept = Kept(SUSPECTED, boot="other")
    with capture_logs() as logs:
        async with running(kept):
            pass
    [line] = logs
    assert line["event"] == "daemon.unclean_end"
    assert line["machine_restarted"] is True
    assert (line["at"], line["loading"], line["at_work"]) == (1.0, ("a",), {"b": ("f" * 12,)})


async def test_after_an_orderly_end_nothing_is_told():
    kept = Kept(RunRecord(VERSION, "boot", 1.0, ended=True))
    with capture_logs() as logs:
        async with running(kept):
            pass
    assert logs == []


async def test_a_suspect_that_serves_well_is_one_no_more_and_the_next_start_knows():
    kept = Kept(SUSPECTED)
    assert kept.crumbs.suspect("a") == Suspect(1, "loading", 1.0, machine_restarted=False)
    assert kept.crumbs.suspect("b") is None
    with pytest.raises(ZeroDivisionError):
        async with kept.crumbs.at_work("a", (asking(1),)):
            raise ZeroDivisionError
    assert kept.crumbs.suspect("a") is not None
    await kept.works_on("a", asking(1))
    assert kept.crumbs.suspect("a") is None
    await kept.crumbs.end()
    written = [await kept.disk.next() for _ in range(2)]
    assert [set(record.suspects) for record in written] == [{"a", "b"}, {"b"}]


async def test_what_was_ready_is_wanted_until_it_was_restored():
    kept = Kept(SUSPECTED)
    await kept.works_on("a", asking(1))
    assert (await kept.disk.next()).resident == SUSPECTED.resident
    kept.crumbs.settled()
    await kept.works_on("b", asking(1))
    assert (await kept.disk.next()).resident == ()


# ---- requests


class Slow:
    """What holds each request before its engine has it, until a test lets it go."""

    def __init__(self):
        self.asked: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.go = asyncio.Event()
        self.left = 0

    @asynccontextmanager
    async def at_work(self, model, requests):
        self.asked.put_nowait((model, len(requests)))
        await self.go.wait()
        try:
            yield
        finally:
            self.left += 1


async def test_a_request_reaches_its_engine_only_when_that_is_known_with_all_its_sequences():
    slow = Slow()
    async with serving(at_work=slow.at_work) as served, aiohttp.ClientSession(served.url) as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json={**HELLO, "n": 2}))
        assert await slow.asked.get() == ("m", 2)
        assert served.engine.arrivals.empty()
        slow.go.set()
        for _ in range(2):
            served.engine.put(await served.engine.arrivals.get(), last("x"))
        assert slow.left == 0
        async with await asked as answer:
            assert len((await answer.json())["choices"]) == 2
        assert slow.left == 1


async def test_a_request_that_is_cancelled_before_that_is_known_never_reaches_its_engine():
    slow = Slow()
    async with serving(at_work=slow.at_work) as served, aiohttp.ClientSession(served.url) as client:
        headers = {"X-Request-Id": "mine"}
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=HELLO, headers=headers))
        await slow.asked.get()
        async with client.delete("/v1/requests/mine") as answer:
            assert answer.status == 200
        async with await asked as answer:
            assert (await answer.json())["mlxd"]["cancelled"] is True
        assert served.engine.arrivals.empty()
