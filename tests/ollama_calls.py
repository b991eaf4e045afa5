"""Ways to use a served application, or a daemon, as an Ollama client does."""

import asyncio
import json

import ollama
from api_calls import ask, within
from api_fakes import serving

CHAT = "/api/chat"
GENERATE = "/api/generate"
USER = {"role": "user", "content": "hello"}


def chat(**fields):
    return {"model": "m", "messages": [USER], **fields}


def generate(**fields):
    return {"model": "m", "prompt": "hello", **fields}


def lines(text):
    """The objects of a stream."""
    assert text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


class Residency:
    """What clients have said of how long a model stays, and the unloads."""

    def __init__(self, registry):
        self.kept = []
        self.unloaded = []
        self.leases = []
        self._registry = registry
        registry.keep_alive = self._keep_alive
        registry.unload = self._unload

    def _keep_alive(self, model, seconds):
        self.kept.append((model, seconds))
        self.leases.append(self._registry.leases)

    async def _unload(self, model, **_):
        self.unloaded.append(model)


async def sent(body, path=CHAT, *script, **headers):
    """What the engine got for a body that it answers with `script`; the answer's objects."""
    async with serving() as served:
        status, text = await ask(served, body, path, *script, **headers)
        assert status == 200, text
        return served, lines(text) if body.get("stream") is not False else json.loads(text)


async def asked_of(served, asking, *script):
    """Await a client's call while the engine answers it with `script`; the engine's request and the answer."""
    call = asyncio.ensure_future(asking)
    request = await within(served.engine.arrivals.get())
    for item in script:
        served.engine.put(request, item)
    return request, await call


def client_of(served, **options):
    return ollama.AsyncClient(host=served.url, **options)


async def parts_of(served, asking, *script):
    """The parts of a stream that the engine answers with `script`; nothing is sent before they are read."""
    stream = await asking

    async def read():
        return [part async for part in stream]

    _, parts = await asked_of(served, read(), *script)
    return parts
