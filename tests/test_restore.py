"""What a start loads by itself: what is configured and what was in memory, without suspects and without pushing."""

from __future__ import annotations

import asyncio

import pytest
from api_fakes import live
from crumbs import PATIENCE, Disk, asking, model, registry_of
from fake_engine import Workshop
from structlog.testing import capture_logs

from mlxd.daemon.breadcrumbs import Breadcrumbs
from mlxd.daemon.breadcrumbs_record import VERSION, ResidentModel, RunRecord
from mlxd.daemon.restore import FirstLoads
from mlxd.daemon.settings import ModelsSettings, Settings
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.registry.spec import ModelKind


def left(*names, **what):
    """What a run left that ended with these in memory, the last used first."""
    resident = tuple(ResidentModel(name, "text") for name in names)
    return RunRecord(VERSION, "boot", 1.0, resident=resident, **what)


class Start:
    """A start after a run. `loads` are the models in the order in which their loads began."""

    def __init__(self, last, *specs, limit=100, preload=(), restore=True, patience=PATIENCE, **policy):
        self.workshop = Workshop()
        self.registry = registry_of(self.workshop, *specs, limit=limit, **policy)
        self.disk = Disk()
        self.crumbs = Breadcrumbs(self.disk, "boot", last, pause=1000.0)
        self.crumbs.follow(self.registry)
        self.registry.before_load = self.crumbs.before_load
        self.measured = 0
        settings = Settings(models=ModelsSettings(preload=preload, restore=restore))
        self.first = FirstLoads(
            live(settings, specs), self.registry, self.crumbs, self._preload, self._measure, patience
        )
        self.registry.on_models = self.first.on_models

    async def _preload(self, names):
        for name in names:
            await self.registry.load(name, wait=False)

    def _measure(self):
        self.measured += 1

    async def run(self):
        async with asyncio.timeout(PATIENCE):
            await self.first.run()
        return self

    @property
    def loads(self):
        return list(self.workshop.engines)

    def decisions(self, kind):
        found = [each for each in self.registry.last_decisions(100) if each.kind == kind]
        return [(each.model, each.reason) for each in found]


async def test_what_was_in_memory_comes_back_the_last_used_first():
    start = await Start(left("b", "c", "a"), model("a"), model("b"), model("c"), model("d"), limit=1000).run()
    assert start.loads == ["b", "c", "a"]
    assert set(start.registry.names("ready")) == {"a", "b", "c"}
    assert [name for name, reason in start.decisions("load") if reason == "restored"] == ["b", "c", "a"]
    assert start.measured == 3


async def test_without_the_setting_nothing_comes_back():
    start = await Start(left("a"), model("a"), restore=False).run()
    assert start.loads == []
    await start.crumbs.end()
    assert (await start.disk.next()).resident == ()


async def test_what_is_configured_comes_first():
    specs = [model("a"), model("b"), model("c", pinned=True), model("d")]
    start = await Start(left("a", "b", "c", "d"), *specs, limit=1000, preload=("d",)).run()
    assert start.loads == ["d", "c", "a", "b"]


async def test_it_stops_at_the_first_that_does_not_fit_and_nobody_is_evicted():
    start = Start(left("a", "large", "b"), model("a", 40), model("large", 70), model("b", 10))
    with capture_logs() as logs:
        await start.run()
    assert start.loads == ["a"]
    assert start.decisions("evict") == []
    [told] = [line for line in logs if line["event"] == "restore.no_room"]
    assert (told["model"], told["verdict"], told["needed_bytes"], told["free_bytes"]) == (
        "large",
        "loads_after_eviction",
        70,
        60,
    )
    assert logs[-1] == {"event": "restore.done", "log_level": "info", "models": ["a"], "left": ["large", "b"]}


async def test_no_more_come_back_than_may_be_loaded():
    start = await Start(left("a", "b", "c"), *map(model, "abc"), limit=1000, max_loaded=2).run()
    assert start.loads == ["a", "b"]
    assert start.decisions("evict") == []


async def test_what_is_gone_or_is_of_another_kind_or_broken_is_passed_over():
    specs = [model("other", kind=ModelKind.EMBEDDING), model("broken", problem="no weights"), model("a")]
    start = await Start(left("gone", "other", "broken", "a"), *specs).run()
    assert start.loads == ["a"]


async def test_a_model_that_does_not_load_is_passed_over():
    start = Start(left("bad", "a"), model("bad"), model("a"))
    start.workshop.failures["bad"] = LoadError(LoadFailure.BAD_FILES, "broken")
    with capture_logs() as logs:
        await start.run()
    assert start.registry.names("ready") == ("a",)
    assert [line["model"] for line in logs if line["event"] == "model.load_refused"] == ["bad"]


async def test_a_suspect_is_neither_preloaded_nor_restored_and_that_is_told_once():
    last = left("s", "a", loading=("s",), at_work={"p": ("f" * 12,)})
    start = Start(last, model("s"), model("a"), model("p"), limit=1000, preload=("s", "p"))
    with capture_logs() as logs:
        await start.run()
    assert set(start.loads) == {"a", "p"}
    [told] = [line for line in logs if line["event"] == "preload.skipped"]
    known = {"was": "loading", "unclean_ends": 1, "machine_restarted": False, "seen_at": 1.0, "fingerprints": []}
    assert known.items() <= told.items()
    [decision] = [each for each in start.registry.last_decisions(100) if each.kind == "refuse"]
    assert (decision.model, decision.reason, decision.inputs) == ("s", "unclean_end", known)


async def test_a_suspect_is_loaded_for_whoever_asks_and_the_next_start_preloads_it_again():
    start = await Start(left(loading=("s",)), model("s"), preload=("s",)).run()
    async with start.registry.lease("s"), start.crumbs.at_work("s", (asking(1),)):
        pass
    await start.crumbs.end()
    while not (record := await start.disk.next()).ended:
        pass
    again = await Start(record, model("s"), preload=("s",)).run()
    assert again.loads == ["s"]


async def test_it_waits_for_what_others_load_before_it_looks_for_room():
    start = Start(left("b"), model("a"), model("b"))
    start.workshop.hold_loads = True
    asked = asyncio.create_task(start.registry.load("a"))
    await asyncio.sleep(0)
    running = asyncio.create_task(start.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert start.loads == ["a"]
    assert start.measured == 0
    start.workshop.hold_loads = False
    start.workshop.last("a").loading.set()
    await asked
    await running
    assert start.loads == ["a", "b"]


async def test_a_load_without_an_end_does_not_hold_it_for_ever():
    start = Start(left("a", "b"), model("a"), model("b"), patience=0.02)
    start.workshop.hold_loads = True
    with capture_logs() as logs:
        await start.run()
    assert [line["event"] for line in logs if line["event"].startswith("restore")] == ["restore.slow", "restore.done"]
    assert logs[-1]["left"] == ["a", "b"]
    start.workshop.last("a").loading.set()


@pytest.mark.parametrize("stopped_at", ["a", "b"])
async def test_a_stop_in_the_middle_leaves_all_of_them_to_the_next_start(stopped_at):
    start = Start(left("a", "b", "c"), *map(model, "abc"), limit=1000)
    start.workshop.hold_loads = True
    running = asyncio.create_task(start.run())
    while stopped_at not in start.loads:
        if start.loads:
            start.workshop.last("a").loading.set()
        await asyncio.sleep(0)
    start.crumbs.closing()
    assert await start.registry.close(0)
    await running
    await start.crumbs.end()
    while not (record := await start.disk.next()).ended:
        pass
    assert {resident.name for resident in record.resident} == {"a", "b", "c"}


async def test_a_name_that_nobody_knows_is_no_suspect():
    start = Start(left(loading=("a",)), model("a"), preload=("nobody",))
    names = []

    async def preload(wanted):
        names.extend(wanted)

    start.first.preload = preload
    await start.run()
    assert names == ["nobody"]
