"""Hostile peers, hostile clients and bad moments, by programmed peers behind the real application."""

import asyncio
import json
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web
from api_calls import ask, hello, until, within
from api_fakes import HELLO, last, serving
from peer_server import hangs, peer_server, says, streams

from mlxd.daemon.api.peer_events import NDJSON, WholeEvents, is_error
from mlxd.daemon.api.sse import SSE
from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.daemon.peers.listing import MOST_MODELS, BadListing, read_listing
from mlxd.daemon.settings import PeerSettings
from mlxd.registry.breaker import FAILURES

CHAT = "/v1/chat/completions"
FAR = {**HELLO, "model": "far"}
STREAM = {**FAR, "stream": True}
DATA, DONE = b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"
READY = [{"id": "m", "state": "ready"}]


async def answer_of(served, body, path=CHAT, **headers):
    async with aiohttp.ClientSession() as http, http.post(served.url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.text()


async def error_of(served, body, path=CHAT):
    status, text = await answer_of(served, body, path)
    return status, json.loads(text)["error"]


def last_error(text):
    *_, event = text.strip().split("\n\n")
    return json.loads(event.removeprefix("data: "))["error"]["code"]


# -- streams that begin badly, or end badly ----------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"temperature": "x"}, {"messages": []}])
async def test_a_refusal_after_comments_is_the_streams_last_event(wrong):
    async with peer_server(models=READY) as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(b": loading\n\n", then="breaks")
        status, text = await answer_of(served, {**HELLO, "stream": True, **wrong})
        assert status == 200
        assert text.startswith(": loading\n\n")
        assert "HTTP/1.1" not in text
        assert last_error(text) == "invalid_request"


async def test_a_stream_that_nobody_asked_for_is_no_answer():
    async with peer_server(models=READY) as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(b": loading\n\n", DATA, DONE)
        status, text = await ask(served, hello(), CHAT, last("Hi"))
        assert (status, json.loads(text)["choices"][0]["message"]["content"]) == (200, "Hi")


async def test_an_error_as_the_first_event_is_no_answer():
    fails = b'data: {"error":{"code":"model_load_failed"}}\n\n'
    async with peer_server() as one, peer_server() as two:
        one.answer, two.answer = streams(b": loading 41%\n\n", fails), streams(DATA, DONE)
        async with serving(peer=(one.entry("one", priority=1), two.entry("two"))) as served:
            _, text = await answer_of(served, STREAM)
            assert text.encode() == b": loading 41%\n\n" + DATA + DONE
            two.answer = says({}, 503)
            two.answer = streams(fails)
            _, text = await answer_of(served, STREAM)
            assert last_error(text) == "model_load_failed"


async def test_what_breaks_off_inside_an_event_leaves_events_that_can_be_read():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(DATA, b'data: {"half":', then="breaks")
        _, text = await answer_of(served, STREAM)
        assert text.encode().startswith(DATA)
        assert "half" not in text
        assert last_error(text) == "peer_unavailable"


@pytest.mark.parametrize(("kind", "end"), [(SSE, b"\n\n"), (SSE, b"\r\n\r\n"), (NDJSON, b"\n")])
def test_events_are_cut_at_their_ends_wherever_the_pieces_end(kind, end):
    whole = b"".join(b'{"n":%d}' % number + end for number in range(5))
    for size in range(1, len(whole) + 1):
        events = WholeEvents(kind)
        pieces = [events.take(whole[at : at + size]) for at in range(0, len(whole), size)]
        assert b"".join(pieces) + events.rest() == whole
        assert all(piece == b"" or piece.endswith(end) for piece in pieces)


def test_a_large_event_passes_in_pieces_and_comments_are_not_answers():
    events = WholeEvents(SSE)
    assert events.take(b"data: " + b"x" * 300_000) != b""
    waiting = b": one\n\n: two\n: lines\n\nevent: ping\ndata: {}\n\n"
    assert events.waiting(waiting + DATA) == waiting
    assert [is_error(event) for event in (b'data: {"error":null}\n\n', b'{"error":"x"}\n', b"data: x\n\n")] == [
        False,
        True,
        False,
    ]


async def test_a_long_comment_that_comes_in_pieces_is_one():
    comment = b": " + b"x" * 300
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(comment[:100], comment[100:] + b"\n\n", DATA, DONE)
        assert (await answer_of(served, STREAM))[1].encode() == comment + b"\n\n" + DATA + DONE


async def test_a_peer_that_sent_nothing_leaves_nothing_on_the_answer_of_another():
    async with peer_server(models=READY) as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = streams(kind=NDJSON)
        async with aiohttp.ClientSession() as http:
            asking = asyncio.ensure_future(http.post(served.url + CHAT, json=hello(stream=True)))
            request = await within(served.engine.arrivals.get())
            served.engine.put(request, last("Hi"))
            answer = await asking
            assert answer.content_type == "text/event-stream"
            assert "X-Mlxd-Peer" not in answer.headers
            assert "Hi" in await answer.text()


async def test_deep_nonsense_is_a_failed_peer():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says(b'{"a":' + b"[" * 200_000, **{"Content-Type": "application/json"})
        assert (await error_of(served, FAR))[1]["code"] == "peer_unavailable"


# -- when a peer is left alone -----------------------------------------------------------------------------


async def test_a_peer_that_fails_each_request_is_left_alone_although_it_tells_its_models():
    async with peer_server() as bad, peer_server() as good:
        bad.answer, good.answer = says({"error": {}}, 500), says({"from": "good"})
        async with serving(peer=(bad.entry("bad", priority=1), good.entry("good"))) as served:
            looks = bad.looks
            for _ in range(4 * FAILURES):
                assert (await answer_of(served, FAR))[0] == 200
            assert len(bad.asked) == FAILURES
            await until(lambda: bad.looks > looks + 1)  # it is back, for one
            for _ in range(4):
                assert (await answer_of(served, FAR))[0] == 200
            assert len(bad.asked) == FAILURES + 1


async def test_a_request_that_a_proxy_refuses_is_not_the_peers_fault():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says(b"<html>too large</html>", 413)
        for _ in range(2 * FAILURES):
            status, error = await error_of(served, FAR)
            assert (status, error["message"]) == (413, "peer studio refuses the request with status 413")
        peer.answer = says({"from": "peer"})
        assert (await answer_of(served, FAR))[0] == 200


async def test_others_keep_waiting_for_a_peer_at_which_requests_fail():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served, aiohttp.ClientSession() as http:
        release = asyncio.Event()

        async def slow(_):
            await release.wait()
            return web.json_response({"from": "peer"})

        peer.answer = slow
        waiting = asyncio.ensure_future(http.post(served.url + CHAT, json=FAR))
        await until(lambda: peer.asked)
        peer.answer = says({"error": {}}, 500)
        for _ in range(FAILURES):
            assert (await answer_of(served, FAR))[0] in (500, 503)
        assert not served.services.peers.all()[0].is_up
        release.set()
        assert (await (await within(waiting)).json()) == {"from": "peer"}


async def test_a_hanging_peer_is_asked_once_for_each_request():
    async with peer_server(answer=hangs) as peer, serving(peer=(peer.entry(timeout=0.05),)) as served:
        assert (await within(error_of(served, FAR)))[1]["code"] == "peer_unavailable"
        assert len(peer.asked) == 1


async def test_a_stream_whose_peer_is_gone_does_not_stay_silent():
    async with peer_server() as peer, serving(peer=(peer.entry(timeout=None),)) as served:
        peer.answer = streams(DATA, then="hangs")
        asking = asyncio.ensure_future(answer_of(served, STREAM))
        await until(lambda: served.services.peers.all()[0].first_token_s is not None)
        peer.listing = says(b"", 500)
        async with asyncio.timeout(20):
            _, text = await asking
        assert last_error(text) == "peer_unavailable"


async def test_many_requests_for_a_peer_that_is_down_are_few_looks_and_no_longer_pauses():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        [known] = served.services.peers.all()
        peer.listing = says(b"", 500)
        await until(lambda: not known.is_up)
        looks, retry_at = peer.looks, known.breaker.retry_at
        answers = await asyncio.gather(*(answer_of(served, FAR) for _ in range(20)))
        assert {status for status, _ in answers} == {503}
        assert peer.looks - looks <= 2
        assert known.breaker.retry_at <= retry_at + 2


async def test_a_peer_that_never_answered_delays_no_unknown_name_for_long():
    async with serving(peer=(PeerSettings("dead", "http://127.0.0.1:1"),)) as served:
        for _ in range(3):
            assert (await within(error_of(served, {**FAR, "model": "nothing"})))[0] == 404


async def test_a_cancelled_request_is_not_begun_anew_elsewhere():
    async with peer_server() as one, peer_server() as two:
        one.answer, two.answer = hangs, says({"from": "two"})
        async with serving(peer=(one.entry("one", priority=1), two.entry("two"))) as served:
            asking = asyncio.ensure_future(answer_of(served, FAR, **{"X-Request-Id": "mine"}))
            await until(lambda: one.asked)
            async with aiohttp.ClientSession() as http, http.delete(f"{served.url}/v1/requests/mine") as cancel:
                assert cancel.status == 200
            one.listing = says(b"", 500)
            status, text = await within(asking)
            assert (status, json.loads(text)["error"]["code"]) == (404, "request_not_found")
            assert two.asked == []


async def test_a_peer_that_does_not_read_a_body_has_failed():
    listing = json.dumps({"data": [{"id": "far"}]}).encode()
    begun = asyncio.Event()

    async def deaf(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            begun.set()
            await asyncio.Event().wait()
        length = f"Content-Length: {len(listing)}".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + length + b"\r\n\r\n" + listing)
        writer.close()

    async with await asyncio.start_server(deaf, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with serving(peer=(PeerSettings("deaf", f"http://127.0.0.1:{port}", timeout=0.3),)) as served:
            large = {**FAR, "messages": [{"role": "user", "content": "x" * 20_000_000}]}
            status, error = await within(error_of(served, large))
            assert (status, error["code"]) == (503, "peer_unavailable")
            assert begun.is_set()


async def test_a_key_for_some_models_learns_nothing_of_the_models_of_peers():
    key = ApiKey("some", (Scope.INFER,), hash_of("mlxd-some"), datetime.now(UTC), ("m", "studio/open"))
    sent = {"Authorization": "Bearer mlxd-some"}
    models = [{"id": "secret"}, {"id": "open"}]
    async with peer_server(models=models, answer=says({})) as peer, serving(peer=(peer.entry(),), keys=[key]) as served:

        async def told():
            names = ("secret", "studio/secret", "nothing", "studio/nothing")
            answers = [await answer_of(served, {**FAR, "model": name}, **sent) for name in names]
            return [(status, json.loads(text)["error"]["code"]) for status, text in answers]

        assert await told() == [(404, "model_not_found")] * 4
        assert (await answer_of(served, {**FAR, "model": "open"}, **sent))[0] == 200
        assert (await answer_of(served, {**FAR, "model": "studio/open"}, **sent))[0] == 200
        assert len(peer.asked) == 2
        peer.listing = says(b"", 500)
        await until(lambda: not served.services.peers.all()[0].is_up)
        assert await told() == [(404, "model_not_found")] * 4


# -- names -------------------------------------------------------------------------------------------------


async def test_names_that_no_model_can_have_are_not_passed_on_and_unlisted_ones_not_kept():
    async with peer_server() as peer, serving(peer=(peer.entry(),)) as served:
        peer.answer = says({"error": {"code": "model_not_found"}}, 404)
        for name in ("studio/" + "x" * 1000, "studio/a\nb", "studio/"):
            assert (await error_of(served, {**FAR, "model": name}))[0] == 404
        assert peer.asked == []
        for number in range(5):
            assert (await error_of(served, {**FAR, "model": f"studio/name-{number}"}))[0] == 404
        assert len(peer.asked) == 5
        assert b"name-" not in served.services.metrics.text()


async def test_a_latest_that_a_peer_lists_is_its_own_and_else_means_nothing():
    async with peer_server(models=[{"id": "llama3:latest"}, {"id": "far"}]) as peer:
        peer.answer = says({})
        async with serving(peer=(peer.entry(),)) as served, aiohttp.ClientSession() as http:
            for name in ("llama3:latest", "studio/llama3:latest", "far:latest", "studio/far:latest"):
                assert (await answer_of(served, {**FAR, "model": name}))[0] == 200
                async with http.get(f"{served.url}/v1/models/{name}") as answer:
                    assert answer.status == 200
        assert [asked.body["model"] for asked in peer.asked] == ["llama3:latest", "llama3:latest", "far", "far"]


async def test_a_name_that_means_something_here_is_listed_with_its_peer():
    models = [{"id": "embed"}, {"id": "M"}, {"id": "far"}]
    async with (
        peer_server(models=models) as peer,
        serving(peer=(peer.entry(),)) as served,
        aiohttp.ClientSession(served.url) as http,
        http.get("/v1/models") as answer,
    ):
        names = [model["id"] for model in (await answer.json())["data"] if "peer" in model]
    assert names == ["studio/embed", "studio/M", "far"]


def test_a_listing_is_read_as_far_as_it_can_be():
    entries = [
        {"id": "a", "state": "loading", "waiting": 3, "kind": "text", "context_length": 9, "capabilities": ["x"]},
        {"id": "b", "state": {}, "waiting": None, "kind": 3, "context_length": "8192", "capabilities": [1]},
        {"id": "x" * 300},
        {"id": "new\nline"},
        {"id": 5},
        "nothing",
        {"id": "c", "max_model_len": 7, "waiting": -2},
    ]
    data = json.dumps({"data": entries}).encode()
    listing = read_listing(data, is_mlxd=True)
    assert list(listing.models) == ["a", "b", "c"]
    assert (listing.models["a"].state, listing.models["a"].waiting, listing.waiting) == ("loading", 3, 3)
    assert (listing.models["b"].state, listing.models["b"].context_length) == ("ready", None)
    assert listing.models["c"].context_length == 7
    others = read_listing(data, is_mlxd=False)
    assert {model.state for model in others.models.values()} == {"ready"}
    for bad in (b"", b"[]", b'{"data":3}', json.dumps({"data": [{"id": "a"}] * (MOST_MODELS + 1)}).encode()):
        with pytest.raises(BadListing):
            read_listing(bad, is_mlxd=True)
