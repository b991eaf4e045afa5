"""Images are fetched and given memory before their model is held; all of it ends with the request."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from api_calls import CHAT, QUICK, ask, refusal, until, within
from api_fakes import SEES, SPECS, last, post, serving
from image_bodies import PNG, openai_image, openai_url, png, text

from mlxd.daemon.api.image_room import ImageRoom
from mlxd.daemon.settings import ImagesSettings, ResidencySettings

HERE = ImagesSettings(remote_hosts=("127.0.0.1",))
LARGE = png(padding=300_000)


def seeing(**settings):
    return serving(specs=(*SPECS, SEES), **settings)


def looks(*parts, **fields):
    return {"model": "sees", "messages": [{"role": "user", "content": [text("x"), *parts]}], **fields}


@asynccontextmanager
async def gate():
    """A host whose images come once its gate is open; `asked` and `left` count its requests."""
    opened, asked, left = asyncio.Event(), asyncio.Queue(), asyncio.Queue()

    async def answer(request):
        asked.put_nowait(request.path)
        try:
            await opened.wait()
        except asyncio.CancelledError:
            left.put_nowait(request.path)
            raise
        return web.Response(body=PNG)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", opened, asked, left
    finally:
        await runner.cleanup()


def views(served):
    return [(view.state, view.waiting_for) for view in served.services.running.views(served.registry.waiting())]


async def answered(served, asking):
    served.engine.put(await within(served.engine.arrivals.get()), last("ok"))
    return (await within(asking))[0]


async def test_images_are_fetched_together_before_the_model_is_asked_for():
    async with gate() as (host, opened, asked, _), seeing(images=HERE) as served:
        body = looks(openai_url(f"{host}/a"), openai_image(), openai_url(f"{host}/b"))
        asking = asyncio.ensure_future(ask(served, body))
        assert {await within(asked.get()) for _ in range(2)} == {"/a", "/b"}
        assert served.registry.waits.empty()
        assert views(served) == [("queued", None)]
        # until they are there, they may be as large as any
        assert served.services.image_room.held >= 2 * HERE.max_bytes
        opened.set()
        request = await within(served.engine.arrivals.get())
        assert len(request.images.images) == 3
        served.engine.put(request, last("ok"))
        assert (await within(asking))[0] == 200


async def test_the_first_image_that_fails_ends_the_fetches_of_the_others():
    async with gate() as (host, _, asked, left), seeing(images=HERE) as served:
        body = looks(openai_url(f"{host}/a"), openai_url("http://127.0.0.1:1/b"))
        status, error = await within(refusal(served, body))
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "messages[0].content[2]")
        if not asked.empty():
            await within(left.get())
        assert served.registry.waits.empty()


async def test_a_client_that_leaves_ends_its_fetches():
    async with gate() as (host, _, asked, left), seeing(images=HERE) as served:
        _, writer = await post(served.port, CHAT, looks(openai_url(f"{host}/a")))
        await within(asked.get())
        writer.close()
        await within(left.get())
        await until(lambda: len(served.services.running) == 0)
        assert served.registry.waits.empty()


async def test_a_request_can_be_cancelled_while_its_images_are_fetched():
    async with gate() as (host, _, asked, left), seeing(images=HERE) as served:
        asking = asyncio.ensure_future(ask(served, looks(openai_url(f"{host}/a")), **{"X-Request-Id": "r1"}))
        await within(asked.get())
        async with aiohttp.ClientSession(served.url) as http, http.delete("/v1/requests/r1") as answer:
            assert answer.status == 200
        await within(left.get())
        status, body = await within(asking)
        assert (status, json.loads(body)["mlxd"]["cancelled"]) == (200, True)
        assert served.registry.waits.empty()


async def test_a_stream_shows_life_while_images_are_fetched():
    async with gate() as (host, opened, _asked, _left), seeing(images=HERE, server=QUICK) as served:
        body = looks(openai_url(f"{host}/a"), stream=True)
        async with aiohttp.ClientSession(served.url) as http, http.post(CHAT, json=body) as answer:
            assert await within(answer.content.readuntil(b"\n\n")) == b": waiting\n\n"
            opened.set()
            served.engine.put(await within(served.engine.arrivals.get()), last("ok"))
            assert (await within(answer.read())).endswith(b"data: [DONE]\n\n")


# ---- memory


def room(size):
    return {"image_room": ImageRoom(lambda: size)}


async def test_memory_is_held_for_what_is_made_of_images_until_the_answer_ends():
    async with seeing() as served:
        asking = asyncio.ensure_future(ask(served, looks(openai_image(LARGE), openai_image())))
        request = await within(served.engine.arrivals.get())
        assert served.services.image_room.held == request.images.nbytes == len(LARGE) + len(PNG)
        served.engine.put(request, last("ok"))
        assert (await within(asking))[0] == 200
        await until(lambda: served.services.image_room.held == 0)


async def test_a_request_without_images_needs_no_room():
    async with seeing(**room(1)) as served:
        asking = asyncio.ensure_future(ask(served, looks(openai_image(LARGE))))
        request = await within(served.engine.arrivals.get())
        assert await within(answered(served, asyncio.ensure_future(ask(served, looks())))) == 200
        served.engine.put(request, last("ok"))
        assert (await within(asking))[0] == 200


async def test_a_request_waits_for_memory_in_its_turn_and_says_so():
    async with seeing(**room(500_000)) as served:
        first = asyncio.ensure_future(ask(served, looks(openai_image(LARGE))))
        holder = await within(served.engine.arrivals.get())
        second = asyncio.ensure_future(ask(served, looks(openai_image(LARGE))))
        await until(lambda: ("queued", "memory") in views(served))
        assert served.registry.waits.qsize() == 1
        served.engine.put(holder, last("ok"))
        assert (await within(first))[0] == 200
        assert await answered(served, second) == 200


async def test_a_request_that_waits_for_memory_can_be_cancelled():
    async with seeing(**room(500_000)) as served:
        first = asyncio.ensure_future(ask(served, looks(openai_image(LARGE))))
        holder = await within(served.engine.arrivals.get())
        second = asyncio.ensure_future(ask(served, looks(openai_image(LARGE)), **{"X-Request-Id": "r2"}))
        await until(lambda: ("queued", "memory") in views(served))
        assert served.services.running.cancel("r2")
        assert json.loads((await within(second))[1])["mlxd"]["cancelled"]
        served.engine.put(holder, last("ok"))
        assert (await within(first))[0] == 200


@pytest.mark.parametrize(
    ("headers", "settings"),
    [({"X-Mlxd-Max-Wait": "0"}, {}), ({}, {"residency": ResidencySettings(queue_timeout=0.05)})],
)
async def test_a_request_waits_for_memory_no_longer_than_for_its_model(headers, settings):
    async with seeing(**room(500_000), **settings) as served:
        first = asyncio.ensure_future(ask(served, looks(openai_image(LARGE))))
        holder = await within(served.engine.arrivals.get())
        status, error = await within(refusal(served, looks(openai_image(LARGE)), **headers))
        assert (status, error["code"]) == (503, "model_wait_timeout")
        assert error["details"]["estimated_bytes"] > error["details"]["available_bytes"] > 0
        served.engine.put(holder, last("ok"))
        assert (await within(first))[0] == 200
        # with room there is nothing to wait for
        assert await answered(served, asyncio.ensure_future(ask(served, looks(openai_image()), **headers))) == 200


async def test_what_waits_for_memory_is_bounded_and_more_is_refused():
    async with seeing(**room(500_000)) as served:
        first = asyncio.ensure_future(ask(served, looks(openai_image(LARGE))))
        holder = await within(served.engine.arrivals.get())
        second = asyncio.ensure_future(ask(served, looks(openai_image(LARGE))))
        await until(lambda: ("queued", "memory") in views(served))
        async with (
            aiohttp.ClientSession(served.url) as http,
            http.post(CHAT, json=looks(openai_image(LARGE))) as answer,
        ):
            assert (answer.status, (await answer.json())["error"]["code"]) == (429, "queue_full")
            assert "Retry-After" in answer.headers
        served.engine.put(holder, last("ok"))
        assert (await within(first))[0] == 200
        assert await answered(served, second) == 200


async def test_a_refused_request_gives_its_memory_back():
    async with seeing() as served:
        for body in (looks(openai_image(PNG[:8] + b"broken")), looks(openai_image(b"GIF"))):
            assert (await refusal(served, body))[0] == 400
            assert served.services.image_room.held == 0
