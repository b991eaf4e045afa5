"""How long Ollama clients keep a model: what they may say, when it counts, and who may say it."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import ollama
import pytest
from aiohttp import ClientSession
from api_calls import ask, within
from api_fakes import last, serving
from ollama_calls import CHAT, GENERATE, USER, Residency, asked_of, chat, client_of, generate

from mlxd.daemon.api.ollama.keep_alive import FOREVER, NOW, parse_keep_alive
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.registry.residency import KeepAlive

SAID = [
    (None, None),
    (0, NOW),
    (-0.0, NOW),
    (300, KeepAlive(300.0)),
    (0.5, KeepAlive(0.5)),
    (-1, FOREVER),
    (-0.001, FOREVER),
    (1e300, FOREVER),
    (2**70, FOREVER),
    (10**400, FOREVER),
    (-(10**400), FOREVER),
    ("0", NOW),
    ("0s", NOW),
    ("-1", FOREVER),
    ("-1s", FOREVER),
    ("-5m", FOREVER),
    ("24h", KeepAlive(86400.0)),
    ("5m", KeepAlive(300.0)),
    ("1h30m", KeepAlive(5400.0)),
    ("1h15m30.918273645s", KeepAlive(4530.918273645)),
    ("1.5h", KeepAlive(5400.0)),
    (".5s", KeepAlive(0.5)),
    ("+2s", KeepAlive(2.0)),
    ("300ms", KeepAlive(0.3)),
    ("2500us", KeepAlive(0.0025)),
    ("1s1s", KeepAlive(2.0)),
    ("300", KeepAlive(300.0)),
    (" 5m ", KeepAlive(300.0)),
    ("99999999h", FOREVER),
]
NONSENSE = [
    "",
    " ",
    "m",
    "5 m",
    "five",
    "5d",
    "-",
    "+",
    ".",
    "1h30",
    "1e3",
    "inf",
    "never",
    "5m;",
    "\u0665m",
    "1" * 101,
    "--1",
]


@pytest.mark.parametrize(("value", "meant"), SAID)
def test_a_duration_is_read_as_ollama_reads_it(value, meant):
    assert parse_keep_alive(value) == meant


@pytest.mark.parametrize("value", NONSENSE)
def test_nonsense_is_no_duration(value):
    with pytest.raises(InvalidField) as refused:
        parse_keep_alive(value)
    assert refused.value.param == "keep_alive"


@pytest.mark.parametrize(("value", "seconds"), [("5m", 300.0), (-1, None), (0, 0.0)])
@pytest.mark.parametrize("stream", [True, False])
async def test_it_counts_from_the_moment_that_the_request_holds_its_model(value, seconds, stream):
    async with serving() as served:
        residency = Residency(served.registry)
        status, text = await ask(served, chat(keep_alive=value, stream=stream), CHAT, last("x"))
        assert status == 200, text
    assert residency.kept == [("m", seconds)]
    assert residency.leases == [1]
    assert residency.unloaded == []


async def test_a_request_that_says_nothing_leaves_it_as_it_is():
    async with serving() as served:
        residency = Residency(served.registry)
        assert (await ask(served, chat(), CHAT, last("x")))[0] == 200
        assert (await ask(served, chat(keep_alive=None), CHAT, last("x")))[0] == 200
        assert (await ask(served, generate(prompt=""), GENERATE))[0] == 200
    assert residency.kept == []


async def test_a_request_that_never_holds_its_model_says_nothing_of_it():
    async with serving() as served:
        residency = Residency(served.registry)
        served.registry.open.clear()
        asking = asyncio.ensure_future(ask(served, chat(keep_alive=0), CHAT))
        await within(served.registry.waits.get())
        asking.cancel()
        await within(served.registry.departures.get())
        served.registry.open.set()
        served.registry.refusal = KeyError("odd")
        assert (await ask(served, chat(keep_alive=0), CHAT))[0] == 500
    assert residency.kept == []


@pytest.mark.parametrize("body", [chat(messages=[]), {"model": "m"}, chat(messages=None), chat(messages=[], tools=[])])
async def test_no_messages_load_the_model(body):
    async with serving() as served:
        residency = Residency(served.registry)
        status, text = await ask(served, {**body, "keep_alive": "5m"}, CHAT)
        answer = json.loads(text)
        assert served.engine.arrivals.empty()
        assert served.engine.tokenizer.chats == []
    assert status == 200
    assert (answer["done"], answer["done_reason"], answer["message"]) == (
        True,
        "load",
        {"role": "assistant", "content": ""},
    )
    assert answer["load_duration"] == 500_000_000
    assert residency.kept == [("m", 300.0)]
    assert residency.leases == [1]


async def test_the_client_loads_and_unloads_with_an_empty_prompt():
    async with serving() as served:
        residency = Residency(served.registry)
        client = client_of(served)
        loaded = await client.generate("gpt-4o", "", keep_alive=-1)
        assert (loaded.done, loaded.done_reason, loaded.response, loaded.model) == (True, "load", "", "gpt-4o")
        unloaded = await client.generate("gpt-4o", keep_alive=0)
        assert (unloaded.done, unloaded.done_reason, unloaded.response) == (True, "unload", "")
        assert (await client.chat("m", keep_alive="0s")).done_reason == "unload"
    assert residency.kept == [("m", None)]
    assert residency.unloaded == ["m", "m"]


async def test_an_unload_neither_loads_nor_waits_for_the_model():
    async with serving() as served:
        residency = Residency(served.registry)
        served.registry.open.clear()
        assert (await within(ask(served, generate(prompt="", keep_alive=0), GENERATE)))[0] == 200
        assert served.registry.waits.empty()
    assert residency.unloaded == ["m"]


async def test_a_load_that_fails_has_the_status_of_a_request():
    async with serving() as served:
        with pytest.raises(ollama.ResponseError) as failed:
            await client_of(served).generate("nothing", "")
        assert failed.value.status_code == 404
        with pytest.raises(ollama.ResponseError) as failed:
            await client_of(served).generate("nothing", "", keep_alive=0)
        assert failed.value.status_code == 404


async def test_a_pinned_model_stays_whatever_clients_say():
    async with serving() as served:
        residency = Residency(served.registry)
        snapshot = served.registry.model
        served.registry.model = lambda name: replace(snapshot(name), pinned=True)
        ignored = await ignored_of(served, chat(keep_alive=0))
    assert ignored == "keep_alive"
    assert residency.kept == []


def key(name, *scopes, models=()):
    return ApiKey(name, scopes, hash_of(name), datetime.now(UTC), models)


KEYS = (
    key("user", Scope.INFER),
    key("boss", Scope.ADMIN),
    key("half", Scope.ADMIN, models=("m-cold",)),
)


async def ignored_of(served, body, **headers):
    """The header of an answer that names what was passed over."""
    async with ClientSession() as http:
        asking = asyncio.ensure_future(http.post(served.url + CHAT, json=body, headers=headers))
        served.engine.put(await within(served.engine.arrivals.get()), last("x"))
        async with await asking as answer:
            assert answer.status == 200
            return answer.headers.get("X-Mlxd-Ignored")


@pytest.mark.parametrize(
    ("name", "model", "kept", "ignored"),
    [
        ("user", "m", [], "keep_alive"),
        ("boss", "m", [("m", 60.0)], None),
        # a key for a preset alone has no say about the model that it shares with others
        ("half", "m-cold", [], "keep_alive"),
    ],
)
async def test_a_key_without_admin_has_no_say_and_is_told_so(name, model, kept, ignored):
    async with serving(keys=KEYS) as served:
        residency = Residency(served.registry)
        body = chat(model=model, keep_alive=60)
        assert await ignored_of(served, body, Authorization=f"Bearer {name}") == ignored
    assert residency.kept == kept


async def test_a_key_without_admin_loads_but_does_not_unload():
    async with serving(keys=KEYS) as served:
        residency = Residency(served.registry)
        client = client_of(served, headers={"Authorization": "Bearer user"})
        assert (await client.generate("m", "", keep_alive=-1)).done_reason == "load"
        with pytest.raises(ollama.ResponseError, match="admin") as refused:
            await client.generate("m", "", keep_alive=0)
        assert refused.value.status_code == 403
        status, text = await ask(served, generate(prompt="", keep_alive=0), GENERATE, Authorization="Bearer half")
        assert (status, json.loads(text)["code"]) == (403, "forbidden")
        boss = client_of(served, headers={"Authorization": "Bearer boss"})
        assert (await boss.generate("m", "", keep_alive=0)).done_reason == "unload"
    assert residency.kept == []
    assert residency.unloaded == ["m"]


async def test_two_clients_at_a_time_each_have_their_word_when_they_get_the_model():
    async with serving() as served:
        residency = Residency(served.registry)
        client = client_of(served)
        long = asyncio.ensure_future(client.chat("m", [USER], keep_alive=-1))
        first = await within(served.engine.arrivals.get())
        _, answer = await asked_of(served, client.chat("m", [USER], keep_alive=0), last("x"))
        assert answer.done
        served.engine.put(first, last("y"))
        await long
    assert residency.kept == [("m", None), ("m", 0.0)]
