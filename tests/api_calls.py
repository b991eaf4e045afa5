"""Ways to ask a served application, and to wait for what it does."""

import asyncio
import json

import aiohttp
import openai
from api_fakes import HELLO, answer_head, raw

from mlxd.daemon.settings import ServerSettings

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
QUICK = ServerSettings(keepalive_interval=0.01)


def hello(**fields):
    return {**HELLO, **fields}


async def ask(served, body, path=CHAT, *script, **headers):
    """Send a body, give the engine's `script`, and read the answer to its end: status, text."""
    async with aiohttp.ClientSession() as http:
        asking = asyncio.ensure_future(http.post(served.url + path, json=body, headers=headers))
        if script:
            request = await served.engine.arrivals.get()
            for item in script:
                served.engine.put(request, item)
        answer = await asking
        return answer.status, await answer.text()


async def answered(served, body, path=CHAT, *, script, **headers):
    """Send a body; once all its sequences are in the engine, `script` gives them outputs. Status and text."""
    count = body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1)
    async with aiohttp.ClientSession() as http:
        asking = asyncio.ensure_future(http.post(served.url + path, json=body, headers=headers))
        requests = [await within(served.engine.arrivals.get()) for _ in range(count)]
        script(requests)
        answer = await asking
        return answer.status, await answer.text()


def client_of(served):
    return openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0)


async def refusal(served, body, path=CHAT, *script, **headers):
    status, text = await ask(served, body, path, *script, **headers)
    return status, json.loads(text)["error"]


async def within(awaitable):
    """Wait for an event that has to come."""
    async with asyncio.timeout(5):
        return await awaitable


async def until(condition):
    """Wait for a fact that a thread or a socket brings about."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def by_hand(port, head, body=b""):
    """One request by hand; status, headers and the whole body."""
    reader, writer = await raw(port, head, body)
    status, headers = await answer_head(reader)
    data = await reader.readexactly(int(headers.get("content-length", 0)))
    writer.close()
    return status, headers, data


async def code_of(port, head, body=b""):
    status, _, data = await by_hand(port, head, body)
    shown = json.loads(data)["error"]
    assert set(shown) == {"message", "type", "code", "param", "details"}
    return status, shown["code"]
