"""Clients that come in crowds, ask for too much and leave at any moment: a model's process keeps nothing of them."""

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from daemon_process import Api, daemon, sse, text_of
from tiny_models import place_models
from tiny_vision import png, tiny_vision_model
from worker_harness import until

ISOLATED = {"MLXD_ENGINE__ISOLATION": "process"}
MB = 1_000_000
# Prepared, each image of this size is 15 MB in the worker, and takes seconds to encode.
SIDE = 784
BIG = png("big", (SIDE, SIDE))
SLOW_ENCODER = {"vision_config": {"depth": 24, "embed_dim": 256, "num_heads": 8}}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
# Bytes by which a process that keeps nothing may be bigger than it was before: an allocator keeps some.
SLACK = 30 * MB
# Rounds of which one has to leave the processes no bigger than those before did: an allocator grows by steps, and some
# time it has all that it needs; what is kept of each client does not end.
ROUNDS = 8


@pytest.fixture(scope="module")
def served(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("clients-of-workers")
    seer = tiny_vision_model("qwen2_vl", **SLOW_ENCODER)
    models = place_models(folder / "models", {"reader": tiny_model, "seer": seer})
    pixels = models / "seer" / "preprocessor_config.json"
    pixels.write_text(json.dumps({**json.loads(pixels.read_text()), "max_pixels": SIDE**2}))
    with daemon(folder / "d", models, environ=ISOLATED) as running:
        yield running


@pytest.fixture
async def api(served):
    async with Api(served.url) as api:
        yield api


@dataclass(frozen=True)
class Size:
    """File descriptors and bytes of memory of a process."""

    files: int
    bytes: int

    @classmethod
    def of(cls, pid: int) -> "Size":
        process = psutil.Process(pid)
        return cls(process.num_fds(), process.memory_info().rss)


async def threads_of(api: Api, model: str) -> int:
    return psutil.Process((await api.get(f"/admin/models/{model}"))["pid"]).num_threads()


async def sizes_at_rest(served, api: Api, model: str, threads: int) -> tuple[Size, Size]:
    """Of the model's process and of the daemon, once nobody wants anything of them and the former has no more than so
    many threads: what was begun for somebody who has left may take a while. No file is left by then.
    """
    await api.until("/admin/requests", lambda answer: answer["data"] == [])
    shown = await api.until(f"/admin/models/{model}", is_idle)
    process, scratch = psutil.Process(shown["pid"]), served.folder / "state" / "scratch"
    await until(lambda: process.num_threads() <= threads and not list(scratch.iterdir()))
    return Size.of(process.pid), Size.of(served.process.pid)


def is_idle(model: dict) -> bool:
    engine = model["engine"]
    return not (model["leases"] or engine["running"] or engine["waiting"] or model["kv_bytes"])


async def leave_after(seconds: float, asking: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.create_task(asking)
    await asyncio.wait([task], timeout=seconds)
    task.cancel()
    await asyncio.wait([task])


async def streamed(api: Api, text: str, **options: Any) -> str:
    async with api.stream("reader", text, **options) as response:
        assert response.status == 200, await response.text()
        return text_of(await sse(response))


async def crowd(api: Api, alone: str) -> None:
    """Sixty-four streams at once: half of them read to the end, and get what one gets alone; the others leave."""
    dice = random.Random(3)
    stay = [streamed(api, "one of many", max_tokens=24) for _ in range(32)]
    leave = [leave_after(dice.uniform(0, 0.5), streamed(api, "another", max_tokens=2000)) for _ in range(32)]
    answers, _ = await asyncio.gather(asyncio.gather(*stay), asyncio.gather(*leave))
    assert set(answers) == {alone}


async def cancelled(api: Api) -> None:
    """An operator, or the client by another way, ends them while they are tokenized, wait or decode."""
    names = [f"cancelled-{number}" for number in range(8)]
    body = {"model": "reader", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 20000}
    calls = [api.call("POST", "/v1/chat/completions", body, **{"X-Request-Id": name}) for name in names]
    asked = [asyncio.create_task(call) for call in calls]
    await api.until("/admin/requests", lambda answer: any(one["completion_tokens"] for one in answer["data"]))
    for name in names:
        await api.call("DELETE", f"/v1/requests/{name}")
    for status, answer in await asyncio.gather(*asked):
        assert (status, answer["mlxd"]["cancelled"]) == (200, True), answer


async def too_much(api: Api) -> None:
    """Eight megabytes of prompt: refused, and not read to the end for one who has left."""
    status, answer = await api.chat("reader", "word " * 1_600_000)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), answer
    await leave_after(0.2, api.chat("reader", "other " * 1_300_000))


async def choices(api: Api) -> None:
    """Many answers and logprobs to one prompt, whole and left behind; and an answer that has to follow a schema."""
    dear = {"n": 8, "logprobs": True, "top_logprobs": 20, "temperature": 1, "seed": 5}
    status, answer = await api.chat("reader", "several", max_tokens=12, **dear)
    assert (status, len(answer["choices"])) == (200, 8), answer
    assert all(len(choice["logprobs"]["content"]) == 12 for choice in answer["choices"])
    await leave_after(0.2, api.chat("reader", "several", max_tokens=2000, **dear))
    await leave_after(0.1, api.chat("reader", "a city", response_format=FORMAT, max_tokens=2000))


async def test_a_crowd_that_asks_for_too_much_and_leaves_leaves_nothing_in_the_models_process(served, api):
    alone = await streamed(api, "one of many", max_tokens=24)
    threads = await threads_of(api, "reader")

    async def once() -> tuple[Size, Size]:
        await crowd(api, alone)
        await cancelled(api)
        await too_much(api)
        await choices(api)
        return await sizes_at_rest(served, api, "reader", threads)

    await come_to_rest(once)
    assert await streamed(api, "one of many", max_tokens=24) == alone


async def test_images_that_are_cancelled_while_they_are_prepared_or_encoded_are_not_kept(served, api):
    seen = image_body("seen")
    status, before = await api.call("POST", "/v1/chat/completions", seen)
    assert status == 200, before
    dice, threads = random.Random(7), await threads_of(api, "seer")

    async def once() -> tuple[Size, Size]:
        bodies = [image_body(f"image {dice.random()}", BIG) for _ in range(8)]
        await asyncio.gather(*[leave_after(dice.uniform(0, 0.6), ask(api, body)) for body in bodies])
        return await sizes_at_rest(served, api, "seer", threads)

    await come_to_rest(once)
    status, after = await api.call("POST", "/v1/chat/completions", seen)
    assert after["choices"] == before["choices"]


def image_body(text: str, image: bytes = b"") -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(image or png("small")).decode()
    content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": "seer", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8}


async def ask(api: Api, body: dict[str, Any]) -> None:
    await api.call("POST", "/v1/chat/completions", body)


async def come_to_rest(once: Callable[[], Awaitable[tuple[Size, Size]]]) -> None:
    """The sizes of two processes, round after round, until they are as they were; connections to the daemon stay."""
    rounds = [await once(), await once()]
    for _ in range(ROUNDS - 2):
        rounds.append(await once())
        if all(is_at_rest(sizes) for sizes in zip(*rounds, strict=True)):
            return
    pytest.fail(f"they grow in each round: {rounds}")


def is_at_rest(sizes: Sequence[Size]) -> bool:
    *before, last = sizes
    return last.files <= max(each.files for each in before) and last.bytes <= max(each.bytes for each in before) + SLACK
