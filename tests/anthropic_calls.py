"""Anthropic's own client against a served application, and the events of its streams as they are on the wire."""

import asyncio
import json

import aiohttp
import anthropic
from api_calls import within

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}


def asks(**fields):
    """A body for a message of the model m."""
    return {"model": "m", "max_tokens": 9, "messages": [USER], **fields}


def client_of(served):
    return anthropic.AsyncAnthropic(base_url=served.url, api_key="x", max_retries=0)


async def plays(served, asking, *script):
    """Give the engine's `script` to a request that is on its way, and return what the client makes of it."""
    task = asyncio.ensure_future(asking)
    request = await within(served.engine.arrivals.get())
    for item in script:
        served.engine.put(request, item)
    return await within(task)


async def answer_of(served, *script, **fields):
    """A whole message, as the client reads it."""
    async with client_of(served) as client:
        return await plays(served, client.messages.create(**asks(**fields)), *script)


async def final_of(served, *script, **fields):
    """A streamed message, as the client puts it together."""

    async def read():
        async with client_of(served) as client, client.messages.stream(**asks(**fields)) as stream:
            return await stream.get_final_message()

    return await plays(served, read(), *script)


async def wire(served, body, *script, path=MESSAGES, **headers):
    """Status, headers and bytes of an answer."""

    async def read():
        async with aiohttp.ClientSession() as http, http.post(served.url + path, json=body, headers=headers) as answer:
            return answer.status, answer.headers, await answer.text()

    return await (plays(served, read(), *script) if script else within(read()))


def named_events(text):
    """The events of a stream as pairs of name and data; comments stay as they are."""
    events = []
    for block in filter(None, text.split("\n\n")):
        if block.startswith(":"):
            events.append((":", block))
            continue
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events
