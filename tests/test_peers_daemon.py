"""Two real daemons, one of which has the other as a peer."""

import asyncio
import json
import signal
from collections import Counter
from contextlib import contextmanager

import aiohttp
import pytest
from daemon_process import Api, daemon

REQUESTS = 100
TOKENS = 24
WIDTH = 8
PEER = """
[[peer]]
name = "studio"
url = "{url}"
priority = 1
"""


@contextmanager
def front(folder, models, url, config="", **options):
    """A daemon that prefers its peer."""
    with daemon(folder, models, PEER.format(url=url) + config, **options) as running:
        yield running


async def until_up(api, name="studio", state="up"):
    async with asyncio.timeout(30):
        while True:
            [peer] = (await api.get("/admin/peers"))["data"]
            assert peer["name"] == name
            if peer["state"] == state:
                return peer
            await asyncio.sleep(0.05)


async def load_there(api):
    """It is loaded at the peer again, and this is known."""
    body = {"model": "studio/alpha", "prompt": "Hi", "max_tokens": 1}
    status, _ = await api.call("POST", "/v1/completions", body)
    assert status == 200
    async with asyncio.timeout(30):
        while (await api.get("/v1/models/studio/alpha"))["state"] != "ready":
            await asyncio.sleep(0.05)


def request_of(number):
    """Path and body of the requests, in turn: a chat, whole and streamed, a raw prompt, and Anthropic's."""
    chat = {"model": "alpha", "messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": TOKENS}
    text = {"model": "alpha", "prompt": f"number {number}", "max_tokens": TOKENS, "temperature": 0}
    return [
        ("/v1/chat/completions", {**chat, "temperature": 0}),
        ("/v1/chat/completions", {**chat, "temperature": 0, "stream": True}),
        ("/v1/completions", {**text, "stream": True}),
        ("/v1/messages", {**chat, "temperature": 0}),
    ][number % 4]


async def outcome(http, url, number):
    """Who answered, and the text: None for one that broke off in the middle, after its first byte."""
    path, body = request_of(number)
    async with http.post(url + path, json=body) as answer:
        data = await answer.text()
        assert answer.status == 200, data
        peer = answer.headers.get("X-Mlxd-Peer")
    if not body.get("stream"):
        return peer, text_of(json.loads(data))
    events = [line.removeprefix("data: ") for line in data.splitlines() if line.startswith("data: ")]
    if events[-1] != "[DONE]":
        assert json.loads(events[-1])["error"]["code"] == "peer_unavailable"
        assert len(events) > 1
        return peer, None
    assert events.count("[DONE]") == 1
    return peer, "".join(map(text_of, map(json.loads, events[:-1])))


def text_of(answer):
    if "content" in answer:
        return "".join(block["text"] for block in answer["content"])
    return "".join(
        choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
        for choice in answer["choices"]
    )


async def test_a_peer_that_is_killed_and_comes_back_loses_no_request_before_its_first_byte(
    tmp_path, models_dir, tiny_model
):
    models = models_dir({"alpha": tiny_model})
    places = asyncio.Semaphore(WIDTH)
    with daemon(tmp_path / "there", models, exit_code=None) as there:
        port = int(there.url.rpartition(":")[2])
        with front(tmp_path / "here", models, there.url) as here:
            async with Api(here.url) as api, aiohttp.ClientSession() as http:
                await until_up(api)
                alone = [await outcome(http, there.url, number) for number in range(REQUESTS)]

                async def one(number):
                    async with places:
                        return await outcome(http, here.url, number)

                first = [asyncio.ensure_future(one(number)) for number in range(REQUESTS // 2)]
                while sum(asking.done() for asking in first) < REQUESTS // 4:
                    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
                there.process.send_signal(signal.SIGKILL)
                answers = await asyncio.gather(*first)
                there.process.wait()
                with daemon(tmp_path / "there", models, port=port):
                    await until_up(api)
                    await load_there(api)
                    answers += await asyncio.gather(*map(one, range(REQUESTS // 2, REQUESTS)))
                [peer] = (await api.get("/admin/peers"))["data"]
                requests = (await api.get("/admin/requests"))["data"]
    served = Counter(who for who, _ in answers)
    broken = [number for number, (_, text) in enumerate(answers) if text is None]
    print(f"\nserved {dict(served)}, broken off in the middle {broken}")  # noqa: T201
    assert len(answers) == REQUESTS
    assert len(broken) <= WIDTH
    expected = [text for _, text in alone]
    assert [text for _, text in answers] == [None if at in broken else text for at, text in enumerate(expected)]
    assert served["studio"] > REQUESTS // 2
    assert served[None] > 0
    assert (peer["requests"], requests) == (0, [])


async def test_models_of_a_peer_are_listed_explained_and_answered_with_its_key(tmp_path, models_dir, tiny_model):
    models = models_dir({"alpha": tiny_model})
    there_models = tmp_path / "there-models"
    there_models.mkdir()
    (there_models / "beta").symlink_to(tiny_model)
    with daemon(tmp_path / "there", there_models) as there, front(tmp_path / "here", models, there.url) as here:
        async with Api(here.url) as api:
            peer = await until_up(api)
            assert (peer["models"], peer["is_mlxd"], peer["error"]) == (["beta"], True, None)
            listed = (await api.get("/v1/models"))["data"]
            assert [(model["id"], model.get("peer")) for model in listed] == [("alpha", None), ("beta", "studio")]
            assert (await api.get("/v1/models/studio/beta"))["root"] == "beta"
            assert (await api.get("/admin/explain/beta"))["order"] == ["studio"]
            assert (await api.get("/admin/explain/alpha"))["order"] == ["here"]
            body = {"model": "beta", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            status, answer = await api.call("POST", "/v1/chat/completions", body)
            assert (status, answer["usage"]["completion_tokens"]) == (200, 4)
            metrics = await api._session.get("/metrics")
            text = await metrics.text()
            assert 'mlxd_peer_up{peer="studio"} 1.0' in text
            assert 'mlxd_requests_total{api="chat",model="studio/beta",outcome="ok"} 1.0' in text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_peer_that_dies_or_stands_still_is_refused_in_a_bounded_time(tmp_path, models_dir, tiny_model, number):
    models = models_dir({"alpha": tiny_model})
    empty = tmp_path / "empty"
    empty.mkdir()
    with (
        daemon(tmp_path / "there", models, exit_code=None) as there,
        front(tmp_path / "here", empty, there.url) as here,
    ):
        async with Api(here.url) as api:
            await until_up(api)
            there.process.send_signal(number)
            body = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            async with asyncio.timeout(20):
                status, answer = await api.call("POST", "/v1/chat/completions", body)
            assert (status, answer["error"]["code"]) == (503, "peer_unavailable")
            assert "studio" in answer["error"]["message"]
            peer = await until_up(api, state="down")
            assert peer["error"]
        there.process.kill()
