"""GET /admin/events over a real server: readers that come, stay, stand still, leave, and the end of the daemon."""

import asyncio
import json
import socket

import aiohttp
import pytest
from api_calls import QUICK, until, within
from api_fakes import answer_head, raw, serving
from feed_reading import numbers, reading

from mlxd.daemon.api.application import make_application
from mlxd.daemon.api.server import make_runner
from mlxd.daemon.cli.sse import Message, SseParser

HEAD = "GET /admin/events HTTP/1.1\nHost: localhost"


async def test_a_stream_is_a_snapshot_and_then_every_event():
    async with serving() as served:
        feed = served.services.feed
        feed.snapshot = lambda: {"models": [{"id": "m"}]}
        async with reading(served.url) as events:
            assert events.response.headers["Content-Type"].startswith("text/event-stream")
            name, data = await events.next()
            assert (name, data["models"]) == ("snapshot", [{"id": "m"}])
            for item in "abc":
                feed.publish("model", {"id": item})
            seen = [await events.next() for _ in range(3)]
            assert seen == [("model", {"seq": data["seq"] + n, "model": {"id": i}}) for n, i in enumerate("abc", 1)]


async def test_two_readers_get_the_same_events():
    async with serving() as served, reading(served.url) as one, reading(served.url) as other:
        await one.next()
        await other.next()
        for number in range(20):
            served.services.feed.publish("model", {"id": number})
        assert [await one.next() for _ in range(20)] == [await other.next() for _ in range(20)]


async def test_the_id_of_an_event_is_its_number():
    async with serving() as served:
        reader, writer = await raw(served.port, HEAD)
        await answer_head(reader)
        text = (await within(reader.readuntil(b"\n\n"))).decode()
        fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        assert json.loads(fields["data"])["seq"] == int(fields["id"])
        writer.close()


async def test_a_client_that_comes_back_says_what_it_saw_in_either_way():
    async with serving() as served:
        async with reading(served.url) as events:
            _, first = await events.next()
        seq = first["seq"]
        await until(lambda: served.services.feed.readers == 0)
        for item in "ab":
            served.services.feed.publish("model", {"id": item})
        for since, header in ((seq, {}), (None, {"Last-Event-ID": str(seq)})):
            async with reading(served.url, since, **header) as events:
                assert numbers([await events.next(), await events.next()]) == [seq + 1, seq + 2]
        # a browser calls the same URL again, and says in the header what it saw since
        async with reading(served.url, seq, **{"Last-Event-ID": str(seq + 1)}) as events:
            assert numbers([await events.next()]) == [seq + 2]


async def test_a_stream_without_anything_new_begins_at_once():
    async with serving() as served, reading(served.url) as events:
        _, first = await events.next()
        async with reading(served.url, first["seq"]) as again:
            assert await again.comment() == "nothing new"


@pytest.mark.parametrize("headers", [{"Last-Event-ID": "17"}, {"Last-Event-ID": "0f-3"}, {"Last-Event-ID": "9" * 40}])
async def test_what_another_server_numbered_gets_a_snapshot(headers):
    async with serving() as served, reading(served.url, **headers) as events:
        assert (await events.next())[0] == "snapshot"


@pytest.mark.parametrize("since", ["x", "-1", "1.5", "9" * 19, "%D9%A3"])
async def test_a_since_that_is_no_number_is_refused(since):
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        response = await http.get(f"/admin/events?since={since}")
        error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (400, "invalid_request", "since")


async def test_head_is_no_endless_answer():
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        assert (await http.head("/admin/events")).status == 405
    assert served.services.feed.readers == 0


async def test_a_silence_is_filled_with_comments():
    async with serving(server=QUICK) as served, reading(served.url) as events:
        await events.next()
        assert [await events.comment() for _ in range(2)] == ["waiting"] * 2
        served.services.feed.publish("model", {"id": "m"})
        assert (await events.next())[0] == "model"


async def test_a_client_that_leaves_is_forgotten():
    async with serving() as served:
        async with reading(served.url) as events:
            await events.next()
            assert served.services.feed.readers == 1
        await until(lambda: served.services.feed.readers == 0)


async def stuck(port):
    """A client with a small buffer that has read the head of its answer and no more."""
    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=plug, limit=1024)
    writer.write(HEAD.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    await answer_head(reader)
    return reader, writer


async def publish_to_a_quick_reader(served, events, count, size):
    """Publish so many events of so many bytes, each read before the next few; their numbers as they were read."""
    seen = []
    for start in range(0, count, 50):
        for number in range(start, start + 50):
            served.services.feed.publish("model", {"id": number, "path": "x" * size})
        seen += [await events.next() for _ in range(50)]
    return numbers(seen)


async def test_a_client_that_does_not_read_holds_up_nobody_and_gets_a_snapshot_when_it_reads_again():
    async with serving() as served, reading(served.url) as quick:
        reader, writer = await stuck(served.port)
        _, first = await quick.next()
        seen = await publish_to_a_quick_reader(served, quick, 4000, 5000)
        assert seen == list(range(first["seq"] + 1, first["seq"] + 4001))
        served.services.feed.publish("model", {"id": "last"})
        names, got, parser = [], [], SseParser()
        while not got or got[-1] != first["seq"] + 4001:
            for event in parser.feed(await within(reader.read(65536))):
                if isinstance(event, Message):
                    names.append(event.event)
                    got.append(json.loads(event.data)["seq"])
        writer.close()
    snapshots = [place for place, name in enumerate(names) if name == "snapshot"]
    assert len(snapshots) > 1, "it was overrun"
    assert len(got) < 4000
    for place in range(1, len(got)):
        assert got[place] == got[place - 1] + 1 or place in snapshots


@pytest.mark.parametrize("reads", [True, False])
async def test_an_open_stream_does_not_hold_the_end_up(reads):
    async with serving() as served:
        services = served.services
        # its own server, whose patience is longer than this test's
        runner = make_runner(make_application(services), 60)
        await runner.setup()
        await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with reading(f"http://127.0.0.1:{port}") as events:
            await events.next()
            _, writer = await stuck(port)
            await until(lambda: services.feed.readers == 2)
            if reads:
                writer.close()
                await until(lambda: services.feed.readers == 1)
            else:
                await publish_to_a_quick_reader(served, events, 3000, 5000)
            await within(runner.cleanup())
            with pytest.raises(EOFError):
                await events.until("model", id="never")
            writer.close()
        assert services.feed.readers == 0
