"""What a request asks for without effect is named in the head of its answer, whole, streamed or refused."""

import asyncio

import aiohttp
import pytest
from api_calls import CHAT, hello
from api_fakes import last, serving

from mlxd.daemon.api.openai.fields import CHAT as CHAT_FIELDS

SENT = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": None, "temperature": 0}


async def head(served, body, *, answers=True):
    """The status of one answer, and the fields that its head names; None without the header."""

    async def ask():
        async with aiohttp.ClientSession(served.url) as http, http.post(CHAT, json=body) as answer:
            await answer.read()
            return answer.status, answer.headers.get("X-Mlxd-Ignored")

    asking = asyncio.ensure_future(ask())
    if answers:
        served.engine.put(await served.engine.arrivals.get(), last("Hi"))
    return await asking


@pytest.mark.parametrize("stream", [False, True])
async def test_fields_without_effect_are_named(stream):
    async with serving() as served:
        assert await head(served, hello(**SENT, stream=stream)) == (200, "user, metadata, store")


async def test_a_request_without_such_fields_gets_no_header():
    async with serving() as served:
        assert await head(served, hello(temperature=0)) == (200, None)


async def test_a_refusal_names_them_too():
    async with serving() as served:
        assert await head(served, hello(user="u", model="nobody"), answers=False) == (404, "user")


def test_every_field_that_is_passed_over_is_one_of_the_body():
    assert CHAT_FIELDS.ignored <= set(CHAT_FIELDS.known)
