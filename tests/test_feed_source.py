"""What the daemon's parts report becomes events: each change once, at its time, and only while somebody reads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from api_fakes import FakeEngine, live

from mlxd.daemon.api.feed_news import PROGRESS_INTERVAL
from mlxd.daemon.api.feed_source import FeedSource
from mlxd.daemon.api.running import RunningRequests
from mlxd.daemon.api.services import Services
from mlxd.daemon.feed import Feed
from mlxd.daemon.key_ring import KeyRing
from mlxd.daemon.memory_books import MemoryBooks
from mlxd.daemon.settings import Settings
from mlxd.daemon.tokenizer_threads import TokenizerThreads
from mlxd.engines.types import EngineStats, LoadProgress
from mlxd.memory.footprint import Footprint, MemoryLimits
from mlxd.memory.guard import MemoryGuard
from mlxd.registry.decisions import DecisionLog
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.snapshot import LoadStatus, ModelSnapshot
from mlxd.registry.spec import ModelSpec

LIMITS = MemoryLimits(ceiling_bytes=10**10, soft_bytes=9 * 10**9, limit="memory.ceiling")


class Registry:
    """Models that are whatever the test says they are."""

    def __init__(self):
        self.known = {}
        self.loaded = {}
        self.decisions = DecisionLog(lambda: 1.0)
        self.on_models = None

    def put(self, name, state="unloaded", **changes):
        self.known[name] = ModelSnapshot(ModelSpec(name, Path("/m")), state, False, None, 0, 0, 0, 0, **changes)
        self.on_models((name,))

    def model(self, name):
        if name not in self.known:
            raise ModelRemoved(name)
        return self.known[name]

    def models(self):
        return [self.known[name] for name in sorted(self.known)]

    def engines(self):
        return self.loaded

    def waiting(self):
        return ()

    def last_decisions(self, limit):
        return self.decisions.last(limit)


class Probe:
    """A footprint that the test sets, in bytes."""

    def __init__(self):
        self.bytes = 10**9

    def sample(self):
        return Footprint(self.bytes, 0, 0, 10**11, 10**10)


class World:
    """A feed, its source and the parts it listens to; `now` is monotonic seconds."""

    def __init__(self):
        self.now = 100.0
        self.probe = Probe()
        self.registry = Registry()
        guard = MemoryGuard(self.probe, LIMITS, lambda: self.now)
        self.services = Services(
            registry=self.registry,
            live=live(Settings(), ()),
            reloader=SimpleNamespace(),
            tokenizers=TokenizerThreads(1),
            running=RunningRequests(lambda: self.now),
            guard=guard,
            keys=KeyRing(Path("/nowhere")),
            books=MemoryBooks(guard),
            feed=Feed(first=0, clock=lambda: self.now),
            clock=lambda: self.now,
        )
        FeedSource(self.services).connect()
        self.registry.put("a")
        self.registry.put("b")

    def measure(self):
        """What the guard's watch does after each interval."""
        self.services.guard.on_reading(self.services.guard.sample())

    async def events(self, reader):
        """What there is to read once this turn of the loop is over."""
        await asyncio.sleep(0)
        data = b"".join(iter(reader.take, b"")).decode()
        frames = [dict(line.split(": ", 1) for line in block.split("\n")) for block in data.split("\n\n")[:-1]]
        return [(frame["event"], json.loads(frame["data"])) for frame in frames]


@pytest.fixture
async def world():
    return World()


@pytest.fixture
async def reader(world):
    with world.services.feed.reader() as reader:
        await world.events(reader)
        yield reader


def objects(events):
    return [(name, data[name]) for name, data in events]


async def test_a_snapshot_has_everything(world):
    world.registry.decisions.add("load", "lease", model="a")
    with world.services.running.track("r", "a", "chat"), world.services.feed.reader() as reader:
        [(name, data)] = await world.events(reader)
    assert name == "snapshot"
    assert [model["id"] for model in data["models"]] == ["a", "b"]
    assert [request["id"] for request in data["requests"]] == ["r"]
    assert data["memory"]["footprint_bytes"] == 10**9
    assert [decision["kind"] for decision in data["decisions"]] == ["load"]


async def test_changes_of_one_turn_are_one_event_for_each_model(world, reader):
    for state in ("queued", "loading", "ready"):
        world.registry.put("a", state)
    world.registry.put("b", "queued")
    told = [(name, shown["id"], shown["state"]) for name, shown in objects(await world.events(reader))]
    assert told == [("model", "a", "ready"), ("model", "b", "queued")]


async def test_the_progress_of_a_load_is_told_a_few_times_a_second_and_its_end_at_once(world, reader):
    def load(done):
        world.registry.put("a", "loading", load=LoadStatus(LoadProgress(done, 1000), None))

    load(0)
    assert len(await world.events(reader)) == 1
    for done in range(1, 500):
        load(done)
        assert await world.events(reader) == []
    world.now += PROGRESS_INTERVAL
    await asyncio.wait_for(reader.wait(), 5)
    [(_, shown)] = objects(await world.events(reader))
    assert shown["load"]["bytes_done"] == 499
    load(500)
    world.registry.put("a", "ready")
    [(_, shown)] = objects(await world.events(reader))
    assert (shown["state"], shown["load"]) == ("ready", None)


async def test_a_model_that_was_removed_is_told_as_that(world, reader):
    del world.registry.known["b"]
    world.registry.on_models(("b",))
    assert objects(await world.events(reader)) == [("model", {"id": "b", "removed": True})]


async def test_what_an_engine_does_is_told_when_memory_is_measured(world, reader):
    world.registry.loaded["a"] = FakeEngine("a")
    world.registry.put("a", "ready", engine=EngineStats())
    assert [name for name, _ in await world.events(reader)] == ["model"]
    world.measure()
    assert [name for name, _ in await world.events(reader)] == ["memory"], "the model is in its list now"
    world.registry.known["a"] = ModelSnapshot(
        ModelSpec("a", Path("/m")), "ready", False, None, 0, 0, 0, 0, engine=EngineStats(completion_tokens=7)
    )
    assert await world.events(reader) == []
    world.measure()
    [(name, shown)] = objects(await world.events(reader))
    assert (name, shown["engine"]["completion_tokens"]) == ("model", 7)
    world.measure()
    assert await world.events(reader) == []


async def test_a_request_is_told_when_it_comes_moves_on_and_ends(world, reader):
    engine = FakeEngine("a")
    with world.services.running.track("r", "a", "chat") as live:
        [(name, shown)] = objects(await world.events(reader))
        assert (name, shown["id"], shown["state"], shown["waiting_for"]) == ("request", "r", "queued", "model")
        live.tokenize()
        assert [shown["state"] for _, shown in objects(await world.events(reader))] == ["tokenizing"]
        live.admit(engine, 1)
        assert [shown["state"] for _, shown in objects(await world.events(reader))] == ["waiting"]
        engine.live["r"] = None
        world.measure()
        assert [shown["state"] for _, shown in objects(await world.events(reader))] == ["decoding"]
        world.measure()
        assert await world.events(reader) == []
    assert objects(await world.events(reader)) == [("request", {"id": "r", "ended": True})]


async def test_a_request_that_came_and_went_in_one_turn_is_no_event(world, reader):
    with world.services.running.track("r", "a", "chat"):
        pass
    assert await world.events(reader) == []


async def test_a_decision_is_told_before_what_it_did(world, reader):
    world.registry.put("a", "unloading")
    decision = world.registry.decisions.add("evict", "lru", model="a", inputs={"idle_s": 1.5})
    [(first, shown), (second, _)] = objects(await world.events(reader))
    assert (first, second) == ("decision", "model")
    assert (shown["seq"], shown["kind"], shown["inputs"]) == (decision.seq, "evict", {"idle_s": 1.5})


async def test_memory_is_told_when_a_measurement_differs(world, reader):
    world.measure()
    assert await world.events(reader) == []
    world.probe.bytes += 10**8
    world.measure()
    [(name, shown)] = objects(await world.events(reader))
    assert (name, shown["footprint_bytes"], shown["pressure"]) == ("memory", 11 * 10**8, "ok")


async def test_pressure_that_somebody_else_measured_is_told_with_the_next_change(world, reader):
    world.probe.bytes = LIMITS.soft_bytes + 1
    world.services.guard.sample()
    world.registry.put("a", "queued")
    told = objects(await world.events(reader))
    assert [name for name, _ in told] == ["model", "memory"]
    assert told[1][1]["pressure"] == "soft"


async def test_a_late_snapshot_tells_the_others_first_what_nobody_reported(world, reader):
    world.probe.bytes += 10**9
    world.services.guard.sample()
    with world.services.feed.reader() as late:
        [(name, data)] = await world.events(late)
    [(other, told)] = await world.events(reader)
    assert (name, other) == ("snapshot", "memory")
    assert data["memory"] == told["memory"]
    assert data["seq"] == told["seq"]


async def test_without_readers_nothing_is_looked_at(world):
    world.registry.known["a"] = None  # whoever looked would fail
    world.registry.on_models(("a",))
    world.registry.decisions.add("load", "lease", model="a")
    world.measure()
    with world.services.running.track("r", "a", "chat"):
        await asyncio.sleep(0)
    world.registry.put("a", "ready")
    with world.services.feed.reader() as reader:
        [(name, data)] = await world.events(reader)
    assert (name, data["seq"]) == ("snapshot", 1), "only memory was told, for the snapshot itself"


async def test_what_changed_while_nobody_read_is_never_taken_for_told(world):
    """A request moves on unread, and back to where it was told: the next reader must hear of the way back."""
    engine = FakeEngine("a")
    feed = world.services.feed
    with world.services.running.track("r", "a", "chat") as live:
        live.admit(engine, 1)
        with feed.reader() as reader:
            await world.events(reader)
        world.now += 1000
        engine.live["r"] = None
        with feed.reader() as reader:
            [(_, data)] = await world.events(reader)
            assert data["requests"][0]["state"] == "decoding"
            del engine.live["r"]
            world.measure()
            assert [shown["state"] for _, shown in objects(await world.events(reader))] == ["waiting"]
