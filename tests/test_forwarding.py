"""Requests that a peer answers, by a programmed peer behind the real application."""

import asyncio
import gzip
import json

import aiohttp
import pytest
from aiohttp import web
from api_calls import ask, hello, until, within
from api_fakes import HELLO, last, post, serving
from peer_server import hangs, peer_server, says, streams

from mlxd.daemon.settings import PeerSettings
from mlxd.engines.errors import EngineQueueFull

FAR = {**HELLO, "model": "far"}
CHAT = "/v1/chat/completions"
PIECES = (b'data: {"a":1}\n\n', b'data: {"b":2}\n\n', b"data: [DONE]\n\n")
NOWHERE = PeerSettings("nowhere", "http://127.0.0.1:1")


async def answer_of(served, body, path=CHAT, **headers):
    """Status, headers and text."""
    async with aiohttp.ClientSession() as http, http.post(served.url + path, json=body, headers=headers) as answer:
        return answer.status, answer.headers, await answer.text()


async def error_of(served, body, path=CHAT):
    status, _, text = await answer_of(served, body, path)
    return status, json.loads(text)["error"]


async def test_an_answer_in_one_piece_passes_through_as_it_is():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says({"id": "x", "model": "far"})
        status, headers, text = await answer_of(served, FAR)
    assert (status, json.loads(text)) == (200, {"id": "x", "model": "far"})
    assert headers["X-Mlxd-Peer"] == "studio"
    assert peer.asked[0].path == CHAT
    assert peer.asked[0].body == FAR


async def test_a_stream_passes_through_piece_by_piece():
    moments = asyncio.Queue()
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served, aiohttp.ClientSession() as http:
        peer.answer = streams(*PIECES, moments=moments)
        asking = asyncio.ensure_future(http.post(served.url + CHAT, json={**FAR, "stream": True}))
        for number, piece in enumerate(PIECES):
            moments.put_nowait(None)
            if number == 0:
                answer = await within(asking)
                assert (answer.status, answer.content_type) == (200, "text/event-stream")
                assert answer.headers["X-Mlxd-Peer"] == "studio"
            assert await within(answer.content.readany()) == piece  # before the next one is there
        assert await within(answer.content.readany()) == b""


async def test_the_peer_gets_its_own_name_of_the_model_its_key_and_what_is_its_matter():
    asked = {**FAR, "model": "studio/org/far", "temperature": 0.25, "nested": {"ü": [1.50, None]}}
    models = [{"id": "org/far"}]
    async with peer_server(models=models) as peer, serving(peer=(peer.entry(key="secret"),)) as served:
        peer.answer = says({})
        sent = {"Authorization": "Bearer mine", "X-Mlxd-Max-Wait": "3s", "X-Request-Id": "abc", "Cookie": "a=b"}
        status, headers, _ = await answer_of(served, asked, **sent)
    got = peer.asked[0]
    assert status == 200
    assert got.body == {**asked, "model": "org/far"}
    assert got.headers["Authorization"] == "Bearer secret"
    assert (got.headers["X-Mlxd-Max-Wait"], got.headers["X-Request-Id"]) == ("3s", "abc")
    assert got.headers["X-Mlxd-Hops"] == "1"
    assert "Cookie" not in got.headers
    assert headers["X-Request-Id"] == "abc"


async def test_what_was_passed_on_is_not_passed_on_again():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        status, _, text = await answer_of(served, FAR, **{"X-Mlxd-Hops": "1"})
    assert (status, json.loads(text)["error"]["code"]) == (404, "model_not_found")
    assert peer.asked == []


async def test_a_daemon_that_is_its_own_peer_is_told_and_left_alone():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.instance = served.services.peers.instance
        [known] = served.services.peers.all()
        await until(lambda: not known.is_up)
        assert "this daemon itself" in known.error


async def test_ready_there_comes_before_a_load_here_and_ready_here_before_that():
    async with peer_server(models=[{"id": "m", "state": "ready"}]) as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says({"from": "peer"})
        assert json.loads((await answer_of(served, HELLO))[2]) == {"from": "peer"}
        served.registry.state = "ready"
        assert "Hi" in (await ask(served, HELLO, CHAT, last("Hi")))[1]
    assert len(peer.asked) == 1


async def test_a_load_here_comes_before_a_load_there():
    async with peer_server(models=[{"id": "m", "state": "unloaded"}]) as peer, serving(peer=(peer.entry(),)) as served:
        assert "Hi" in (await ask(served, HELLO, CHAT, last("Hi")))[1]
        assert peer.asked == []


async def test_the_one_for_whom_fewer_wait_is_asked_and_those_count_that_this_daemon_sent():
    async with peer_server() as one, peer_server() as two:
        one.models, two.models = [{"id": "far", "waiting": 2}], [{"id": "far", "waiting": 0}]
        async with serving(peer=(one.entry("one"), two.entry("two"))) as served, aiohttp.ClientSession() as http:
            one.answer, two.answer = says({"from": "one"}), hangs
            held = [asyncio.ensure_future(http.post(served.url + CHAT, json=FAR)) for _ in range(3)]
            await until(lambda: len(one.asked) + len(two.asked) == 3)
            assert len(two.asked) >= 2
            assert json.loads((await answer_of(served, FAR))[2]) == {"from": "one"}
            for asking in held:
                asking.cancel()
            await asyncio.gather(*held, return_exceptions=True)


@pytest.mark.parametrize(
    "fault",
    [
        says({"error": {"message": "busy"}}, 503),
        says({"error": {"message": "full"}}, 429),
        says({"error": {"message": "never fits"}}, 507),
        says({"error": {"message": "no such model"}}, 404),
        says({"error": {"message": "who are you"}}, 401),
        says({"error": {"message": "broken"}}, 500),
        says(b"<html>Bad gateway</html>", 502),
        says(b"<html>Hello</html>"),
        says(b"{garbage", **{"Content-Type": "application/json"}),
        says(b"[1, 2]", **{"Content-Type": "application/json"}),
        says(b"", 302, Location="http://elsewhere.example/", **{"Content-Type": "application/json"}),
        streams(),
        streams(b"HTTP/1.1 200 OK\r\n\r\n"),
        streams(b"\x00" * 100, then="hangs"),
        streams(b'{"a', then="breaks"),
        streams(b": loading 4", then="breaks"),
    ],
)
async def test_what_fails_before_its_first_byte_is_answered_by_somebody_else(fault):
    async with peer_server() as bad, peer_server() as good:
        good.answer, bad.answer = says({"from": "good"}), fault
        async with serving(peer=(bad.entry("bad", priority=1), good.entry("good"))) as served:
            status, headers, text = await answer_of(served, FAR)
        assert (status, json.loads(text)) == (200, {"from": "good"})
        assert headers["X-Mlxd-Peer"] == "good"
        assert (len(bad.asked), len(good.asked)) == (1, 1)


async def test_a_peer_that_is_not_there_is_passed_over():
    async with peer_server() as good, serving(peer=(NOWHERE, good.entry("good"))) as served:
        good.answer = says({"from": "good"})
        assert json.loads((await answer_of(served, FAR))[2]) == {"from": "good"}


async def test_this_daemon_takes_over_from_a_peer_and_a_peer_from_this_daemon():
    async with peer_server(models=[{"id": "m", "state": "ready"}]) as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says({}, 503)
        assert "Hi" in (await ask(served, HELLO, CHAT, last("Hi")))[1]
        served.registry.state = "ready"
        served.engine.refusal = EngineQueueFull(1, 1)
        peer.answer = says({"from": "peer"})
        assert json.loads((await answer_of(served, HELLO))[2]) == {"from": "peer"}


async def test_what_is_the_clients_fault_is_nobody_elses():
    async with peer_server() as one, peer_server() as two:
        one.answer, two.answer = says({"error": {"message": "bad field"}}, 400), says({})
        async with serving(peer=(one.entry("one", priority=1), two.entry("two"))) as served:
            status, error = await error_of(served, FAR)
        assert (status, error["message"], two.asked) == (400, "bad field", [])


async def test_the_last_refusal_is_the_answer_with_what_it_says_of_retries():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says({"error": {"message": "busy", "code": "queue_full"}}, 429, **{"Retry-After": "7"})
        status, headers, text = await answer_of(served, FAR)
        assert (status, headers["Retry-After"]) == (429, "7")
        assert json.loads(text)["error"]["code"] == "queue_full"
        assert len(peer.asked) == 1


async def test_a_wrong_key_is_the_operators_matter_and_not_the_clients():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says({"error": {"message": "invalid key"}}, 401)
        status, error = await error_of(served, FAR)
        assert (status, error["code"]) == (503, "peer_unavailable")
        assert "key" not in error["message"]


FACADES = [
    (CHAT, "text/event-stream", b"data: ", "code"),
    ("/v1/messages", "text/event-stream", b"event: error\ndata: ", "code"),
    ("/api/chat", "application/x-ndjson", b"", None),
]


@pytest.mark.parametrize(("path", "kind", "begins", "code"), FACADES)
async def test_after_the_first_byte_a_fault_is_the_streams_last_event(path, kind, begins, code):
    first = b'{"x":1}\n' if kind.endswith("ndjson") else PIECES[0]
    async with peer_server() as bad, peer_server() as good:
        bad.answer, good.answer = streams(first, then="breaks", kind=kind), says({})
        async with serving(peer=(bad.entry("bad", priority=1), good.entry("good"))) as served:
            status, _, text = await answer_of(served, {**FAR, "stream": True}, path)
        assert status == 200
        assert text.encode().startswith(first)
        event = text.encode().removeprefix(first).strip().removeprefix(begins)
        error = json.loads(event)["error"]
        assert "broke off in the middle of its answer" in (error["message"] if code else error)
        assert good.asked == []


async def test_comments_pass_through_and_do_not_keep_another_peer_from_answering():
    async with peer_server() as one, peer_server() as two:
        one.answer, two.answer = streams(b": loading 41%\n\n", then="breaks"), streams(*PIECES)
        async with serving(peer=(one.entry("one", priority=1), two.entry("two"))) as served:
            status, _, text = await answer_of(served, {**FAR, "stream": True})
        assert status == 200
        assert text.encode() == b": loading 41%\n\n" + b"".join(PIECES)


async def test_this_daemon_goes_on_with_a_stream_in_which_there_were_only_comments():
    async with peer_server(models=[{"id": "m", "state": "ready"}]) as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(b": loading\n\n", then="breaks")
        status, text = await ask(served, hello(stream=True), CHAT, last("Hi"))
        assert status == 200
        assert text.startswith(": loading\n\ndata: ")
        assert '"content":"Hi"' in text
        assert text.endswith("data: [DONE]\n\n")


async def test_an_answer_in_one_piece_cannot_follow_comments():
    async with peer_server() as one, peer_server() as two:
        one.answer, two.answer = streams(b": loading\n\n"), says({"from": "two"})
        async with serving(peer=(one.entry("one", priority=1), two.entry("two"))) as served:
            status, _, text = await within(answer_of(served, {**FAR, "stream": True}))
        assert status == 200
        assert "peer_unavailable" in text


async def test_when_nobody_is_left_a_stream_of_comments_ends_with_the_error():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(b": loading\n\n", then="breaks")
        _, _, text = await answer_of(served, {**FAR, "stream": True})
        *_, event = text.strip().split("\n\n")
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == "peer_unavailable"


async def test_who_waits_for_a_peer_that_is_given_up_does_not_wait_on():
    async with peer_server(answer=hangs) as bad, peer_server(answer=says({"from": "good"})) as good:
        peers = (bad.entry("bad", priority=1), good.entry("good"))
        async with serving(peer=peers) as served:
            asking = asyncio.ensure_future(answer_of(served, FAR))
            await until(lambda: bad.asked)
            bad.listing = says(b"", 500)
            assert json.loads((await within(asking))[2]) == {"from": "good"}


async def test_a_peer_that_sends_nothing_for_its_timeout_has_failed():
    async with peer_server() as peer, serving(peer=(peer.entry(timeout=0.05),)) as served:
        peer.answer = hangs
        status, error = await within(error_of(served, FAR))
        assert (status, error["code"]) == (503, "peer_unavailable")


async def test_a_client_that_leaves_is_a_cancel_there_too():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(PIECES[0], then="hangs")
        reader, writer = await post(served.port, CHAT, {**FAR, "stream": True})
        await within(reader.readuntil(PIECES[0]))
        writer.close()
        assert await within(peer.left.get()) == CHAT
        peer.answer = hangs
        _, writer = await post(served.port, CHAT, FAR)
        await until(lambda: len(peer.asked) == 2)
        writer.close()
        assert await within(peer.left.get()) == CHAT


async def test_a_cancel_reaches_the_peer_under_its_own_id_and_the_rest_of_the_answer_comes():
    moments = asyncio.Queue()
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served, aiohttp.ClientSession() as http:
        peer.answer = streams(*PIECES, moments=moments)
        moments.put_nowait(None)
        answer = await http.post(served.url + CHAT, json={**FAR, "stream": True}, headers={"X-Request-Id": "mine"})
        assert await within(answer.content.readany()) == PIECES[0]
        [view] = served.services.running.views(())
        assert (view.id, view.model, view.state) == ("mine", "studio/far", "decoding")
        async with http.delete(f"{served.url}/v1/requests/mine") as cancel:
            assert cancel.status == 200
        assert await within(peer.cancelled.get()) == "req-there"
        moments.put_nowait(None)
        moments.put_nowait(None)
        assert await within(answer.content.read()) == b"".join(PIECES[1:])


async def test_a_server_that_is_no_mlxd_is_asked_only_what_it_knows_and_cannot_be_cancelled():
    async with peer_server(instance=None) as peer, serving(peer=(peer.entry(),)) as served:
        status, error = await error_of(served, {**FAR, "model": "studio/far"}, "/v1/tokenize")
        assert (status, error["code"], error["param"]) == (400, "unsupported_capability", "model")
        status, error = await error_of(served, FAR, "/v1/tokenize")
        assert (status, error["code"]) == (404, "model_not_found")
        peer.answer = says({"from": "peer"})
        assert (await answer_of(served, FAR, "/v1/completions"))[0] == 200
        peer.answer = hangs
        async with aiohttp.ClientSession() as http:
            asking = asyncio.ensure_future(answer_of(served, FAR, **{"X-Request-Id": "mine"}))
            await until(lambda: len(peer.asked) == 2)
            async with http.delete(f"{served.url}/v1/requests/mine") as cancel:
                assert cancel.status == 404
            asking.cancel()
            await asyncio.wait({asking})


async def test_patterns_say_which_models_of_a_peer_are_wanted():
    async with peer_server(models=[{"id": "org/a"}, {"id": "b"}], answer=says({})) as peer:
        wanted = peer.entry(models=("org/*",))
        async with serving(peer=(wanted,)) as served:
            async with aiohttp.ClientSession() as http, http.get(f"{served.url}/v1/models") as answer:
                names = [model["id"] for model in (await answer.json())["data"]]
            assert names[-1] == "org/a"
            assert "b" not in names
            assert (await answer_of(served, {**FAR, "model": "org/a"}))[0] == 200
            assert (await error_of(served, {**FAR, "model": "b"}))[0] == 404
            assert (await error_of(served, {**FAR, "model": "studio/b"}))[0] == 404


@pytest.mark.parametrize("field", [{"store": True}, {"previous_response_id": "resp_1"}, {"background": True}])
async def test_responses_that_would_have_to_be_kept_are_not_passed_on(field):
    asked = {"model": "far", "input": "hello", **field}
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        status, error = await error_of(served, asked, "/v1/responses")
        assert (status, error["code"], error["param"]) == (400, "unsupported_capability", next(iter(field)))
        assert peer.asked == []


async def test_a_response_that_is_passed_on_is_kept_nowhere():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says({})
        assert (await answer_of(served, {"model": "far", "input": "hello"}, "/v1/responses"))[0] == 200
        assert peer.asked[0].body == {"model": "far", "input": "hello", "store": False}


async def test_a_body_that_is_no_request_is_refused_as_ever():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        for body in (5, [], {"model": 5}, {"model": "m"}):
            status, _ = await error_of(served, body)
            assert status == 400
        assert peer.asked == []


async def test_a_large_compressed_body_is_passed_on_as_what_it_holds():
    asked = {**FAR, "user": "x" * 200_000}
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served, aiohttp.ClientSession() as http:
        peer.answer = says({})
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        data = gzip.compress(json.dumps(asked).encode())
        async with http.post(served.url + CHAT, data=data, headers=headers) as answer:
            assert answer.status == 200
    assert peer.asked[0].body == asked


async def test_a_reader_that_is_slow_slows_the_peer_down():
    sent = 0

    async def much(request):
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b"data: " + b"x" * 65_536 + b"\n\n")
            sent += 1

    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = much
        reader, writer = await post(served.port, CHAT, {**FAR, "stream": True})
        await within(reader.readuntil(b"data: "))
        before = -1
        async with asyncio.timeout(20):
            while sent != before:  # until it stands still
                before = sent
                await asyncio.sleep(0.3)
        assert 0 < sent * 65_536 < 32_000_000
        writer.transport.abort()
        await within(peer.left.get())


async def test_answers_of_peers_that_do_not_end_in_time_end_with_the_daemon():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served, aiohttp.ClientSession() as http:
        peer.answer = streams(PIECES[0], then="hangs")
        answer = await within(http.post(served.url + CHAT, json={**FAR, "stream": True}))
        assert await within(answer.content.readany()) == PIECES[0]
        await within(served.services.peers.drain(0.05))
        event = (await within(answer.text())).strip()
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert await within(peer.left.get()) == CHAT


async def test_the_end_of_the_daemon_waits_for_answers_of_peers():
    moments = asyncio.Queue()
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(*PIECES, moments=moments)
        asking = asyncio.ensure_future(answer_of(served, {**FAR, "stream": True}))
        await until(lambda: peer.asked)
        draining = asyncio.ensure_future(served.services.peers.drain(30))
        await asyncio.sleep(0)
        assert not draining.done()
        for _ in PIECES:
            moments.put_nowait(None)
        assert (await within(asking))[2].encode() == b"".join(PIECES)
        await within(draining)


async def test_a_daemon_that_ends_passes_nothing_on():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        served.registry.closing = True
        status, error = await error_of(served, FAR)
        assert (status, error["code"]) == (503, "shutting_down")
        assert peer.asked == []
