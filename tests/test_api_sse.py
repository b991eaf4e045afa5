"""Streams: signs of life, the moment the status goes out, and clients that leave."""

import asyncio
from contextlib import suppress

import pytest
from aiohttp import web
from aiohttp.http_writer import StreamWriter
from api_fakes import answer_head, events, listening, raw

from mlxd.daemon.api import sse
from mlxd.daemon.api.failed_attempts import ATTEMPTS, FailedAttempts
from mlxd.daemon.api.openai.answer import DONE
from mlxd.daemon.api.sse import EventStream, comment, frame, kept_alive


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


class Beats:
    """Signs of life, numbered; a test waits for them."""

    def __init__(self):
        self.made = asyncio.Queue()
        self._number = 0

    def __call__(self):
        self._number += 1
        self.made.put_nowait(self._number)
        return comment(f"beat {self._number}")


async def test_a_silence_is_filled_before_the_first_byte_and_after_it():
    beats, go = Beats(), asyncio.Event()

    async def handler(request):
        stream = EventStream(request)
        async with kept_alive(stream, 0.005, beats):
            await go.wait()
            await stream.write(b"data: 1\n\n")
            while not beats.made.empty():
                beats.made.get_nowait()
            await beats.made.get()
            await stream.write(b"data: 2\n\n")
        return stream.response

    async with serve(handler) as port:
        reader, writer = await raw(port, "GET / HTTP/1.0")
        await beats.made.get()
        status, _ = await answer_head(reader)
        go.set()
        body = (await reader.read()).decode()
        writer.close()
    assert status == 200
    before, between = body.split("data: 1\n\n")
    assert before.startswith(": beat 1\n\n")
    assert between.startswith(": beat ")
    assert between.endswith("data: 2\n\n")


async def test_a_stream_that_writes_has_no_beats_and_leaves_no_task():
    beats, before = Beats(), None

    async def handler(request):
        nonlocal before
        before = asyncio.all_tasks()
        stream = EventStream(request)
        async with kept_alive(stream, 1.0, beats):
            for _ in range(100):
                await stream.write(b"data: 1\n\n")
                await asyncio.sleep(0.015)  # all of it lasts half as long again as a silence
        assert asyncio.all_tasks() == before
        return stream.response

    async with serve(handler) as port:
        reader, writer = await raw(port, "GET / HTTP/1.0")
        body = await reader.read()
        writer.close()
    assert body.count(b"data: 1") == 100
    assert beats.made.empty()


async def test_without_an_interval_there_is_no_task():
    async def handler(request):
        stream, before = EventStream(request), asyncio.all_tasks()
        async with kept_alive(stream, None, lambda: b"never"):
            assert asyncio.all_tasks() == before
            await stream.write(b"data: 1\n\n")
        return stream.response

    async with serve(handler) as port:
        reader, writer = await raw(port, "GET / HTTP/1.0")
        assert (await reader.read()).endswith(b"\r\n\r\ndata: 1\n\n")
        writer.close()


async def test_what_goes_wrong_inside_is_raised_and_a_beat_that_fails_too():
    outcomes = asyncio.Queue()

    async def handler(request):
        stream = EventStream(request)
        with suppress(ValueError):
            async with kept_alive(stream, 10, lambda: b""):
                raise ValueError("broken")
        outcomes.put_nowait("raised")
        with suppress(ZeroDivisionError):
            async with kept_alive(stream, 0.001, lambda: b"%d" % (1 // 0)):
                await asyncio.sleep(0.05)
        outcomes.put_nowait("raised too")
        await stream.write(b"data: 1\n\n")
        return stream.response

    async with serve(handler) as port:
        reader, writer = await raw(port, "GET / HTTP/1.0")
        assert (await reader.read()).endswith(b"data: 1\n\n")
        writer.close()
    assert [outcomes.get_nowait(), outcomes.get_nowait()] == ["raised", "raised too"]


async def test_a_client_that_left_ends_a_handler_that_is_silent():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(request):
        stream = EventStream(request)
        try:
            async with kept_alive(stream, 0.01, lambda: b": beat\n\n"):
                begun.set()
                await asyncio.Event().wait()
        finally:
            ended.set()
        return stream.response

    before = asyncio.all_tasks()
    async with serve(handler) as port:
        reader, writer = await raw(port, "GET / HTTP/1.1\nHost: x")
        await answer_head(reader)
        await begun.wait()
        writer.transport.abort()
        async with asyncio.timeout(5):
            await ended.wait()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_head_and_first_chunk_go_out_together_and_so_do_the_last_chunk_and_the_end(monkeypatch):
    sent = []
    write = StreamWriter._write
    monkeypatch.setattr(StreamWriter, "_write", lambda self, chunk: (sent.append([chunk]), write(self, chunk)))
    lines = StreamWriter._writelines
    monkeypatch.setattr(StreamWriter, "_writelines", lambda self, many: (sent.append(list(many)), lines(self, many)))

    async def handler(request):
        stream = EventStream(request)
        await stream.write(b"data: 1\n\n")
        await stream.end(DONE)
        return stream.response

    async with serve(handler) as port:
        reader, writer = await raw(port, "GET / HTTP/1.1\nHost: x\nConnection: close")
        received = await reader.read()
        writer.close()
    assert received.endswith(b"data: 1\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    first, last = sent
    assert first[0].startswith(b"HTTP/1.1 200")
    assert b"data: 1\n\n" in first
    assert last == [b"e\r\n", DONE, b"\r\n0\r\n\r\n"]


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
