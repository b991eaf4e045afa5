"""Streams: heartbeats, the moment the status goes out, and clients that leave."""

import asyncio
from contextlib import aclosing

import pytest
from aiohttp import web
from api_fakes import answer_head, events, listening, raw

from mlxd.daemon.api import sse
from mlxd.daemon.api.failed_attempts import ATTEMPTS, FailedAttempts
from mlxd.daemon.api.openai.answer import DONE
from mlxd.daemon.api.sse import HEARTBEAT, EventStream, frame, with_heartbeat


class Source:
    """An async generator that gives what the test feeds, and tells when it is closed."""

    def __init__(self):
        self.items = asyncio.Queue()
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        self.tasks = set()

    async def read(self):
        try:
            while True:
                self.tasks.add(asyncio.current_task())
                self.asked.set()
                item = await self.items.get()
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            await asyncio.sleep(0)  # what a source awaits in its finally is awaited
            self.closed.set()

    def feed(self, *items):
        for item in items:
            self.items.put_nowait(item)


async def test_items_pass_in_order_and_the_source_is_closed_at_the_end():
    source = Source()
    source.feed(1, 2, 3, None)
    assert [item async for item in with_heartbeat(source.read(), 10)] == [1, 2, 3]
    assert source.closed.is_set()


async def test_a_silence_is_filled_with_heartbeats_and_loses_nothing():
    source = Source()
    async with aclosing(with_heartbeat(source.read(), 0.005)) as items:
        assert [await anext(items) for _ in range(3)] == [HEARTBEAT] * 3
        source.feed("x")
        while (item := await anext(items)) is HEARTBEAT:
            pass
        assert item == "x"
        assert await anext(items) is HEARTBEAT


async def test_without_an_interval_there_are_no_heartbeats():
    source = Source()
    async with aclosing(with_heartbeat(source.read(), None)) as items:
        asking = asyncio.ensure_future(anext(items))
        await source.asked.wait()
        source.feed("x")
        assert await asking == "x"


async def test_an_error_of_the_source_comes_after_the_items_before_it():
    source = Source()
    source.feed(1, ValueError("broken"))
    items = with_heartbeat(source.read(), 10)
    assert await anext(items) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(items)
    assert source.closed.is_set()


async def test_a_timeout_error_of_the_source_is_no_heartbeat():
    source = Source()
    source.feed(TimeoutError("mine"))
    with pytest.raises(TimeoutError, match="mine"):
        await anext(with_heartbeat(source.read(), 10))


async def test_the_source_runs_in_one_task_from_first_to_last():
    source = Source()
    source.feed(1, 2, 3, None)
    _ = [item async for item in with_heartbeat(source.read(), 10)]
    assert len(source.tasks) == 1
    assert asyncio.current_task() not in source.tasks


async def test_a_slow_reader_holds_the_source_back():
    source = Source()
    source.feed(*range(10))
    async with aclosing(with_heartbeat(source.read(), 10)) as items:
        await anext(items)
        for _ in range(20):
            await asyncio.sleep(0)
        assert source.items.qsize() >= 7


@pytest.mark.parametrize("read", [0, 1])
async def test_a_cancelled_reader_closes_the_source_and_leaves_no_task(read):
    source, before = Source(), asyncio.all_tasks()
    source.feed(*range(read))

    async def consume():
        async with aclosing(with_heartbeat(source.read(), 10)) as items:
            async for _ in items:
                source.asked.clear()

    reader = asyncio.create_task(consume())
    await source.asked.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert source.closed.is_set()
    assert asyncio.all_tasks() == before


async def test_a_reader_that_stops_early_closes_a_source_that_has_an_item_ready():
    source, before = Source(), asyncio.all_tasks()
    source.feed(1, 2, 3)
    async with aclosing(with_heartbeat(source.read(), 10)) as items:
        await anext(items)
    assert source.closed.is_set()
    assert asyncio.all_tasks() == before


def test_an_event_is_framed_as_one_block():
    assert frame({"a": "x\ny\u2028"}) == b'data: {"a":"x\\ny\xe2\x80\xa8"}\n\n'


# -- through a server ----------------------------------------------------------------------------------------


def serve(handler):
    application = web.Application()
    application[ATTEMPTS] = FailedAttempts()
    application.router.add_get("/", handler)
    return listening(application)


async def test_the_status_goes_out_with_the_first_event_and_not_before():
    streams, go = asyncio.Queue(), asyncio.Event()

    async def handler(request):
        stream = EventStream(request)
        streams.put_nowait(stream)
        await go.wait()
        await stream.send([{"n": 1}, {"n": 2}])
        await stream.comment("waiting")
        await stream.write(DONE)
        return stream.response

    async with serve(handler) as port:
        reader, writer = await raw(port, "GET / HTTP/1.0")
        assert not (await streams.get()).started
        go.set()
        status, headers = await answer_head(reader)
        body = (await reader.read()).decode()
        writer.close()
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"].startswith("no-cache")
    assert headers["x-accel-buffering"] == "no"
    assert events(body) == [{"n": 1}, {"n": 2}, "[DONE]"]
    assert ": waiting\n\n" in body
    assert body.endswith(DONE.decode())


async def test_a_client_that_left_ends_the_handler_and_its_source():
    source, ended = Source(), asyncio.Event()
    source.feed({"n": 1})

    async def handler(request):
        stream = EventStream(request)
        try:
            async with aclosing(with_heartbeat(source.read(), 10)) as items:
                async for item in items:
                    await stream.send([item])
        finally:
            ended.set()
        return stream.response

    async with serve(handler) as port:
        reader, writer = await raw(port, "GET / HTTP/1.1\nHost: x")
        await answer_head(reader)
        writer.transport.abort()
        async with asyncio.timeout(5):
            await ended.wait()
        assert source.closed.is_set()


@pytest.mark.parametrize("size", [100_000, 16_300, 13_888, 1_000])
async def test_a_client_that_reads_nothing_holds_the_source_back_and_is_cut_off(monkeypatch, size):
    monkeypatch.setattr(sse, "WRITE_TIMEOUT", 0.2)
    outcome = asyncio.get_running_loop().create_future()
    written = 0

    async def handler(request):
        nonlocal written
        stream = EventStream(request)
        try:
            while True:
                await stream.write(b": " + b"x" * size + b"\n\n")
                written += size
        except ConnectionResetError as error:
            outcome.set_result(error)
        return stream.response

    async with serve(handler) as port:
        _, writer = await raw(port, "GET / HTTP/1.1\nHost: x")
        async with asyncio.timeout(10):
            error = await outcome
        assert "does not read" in str(error)
        assert written < 50_000_000
        writer.transport.abort()
