"""A real daemon with vision models, asked by the clients that people use."""

from __future__ import annotations

import asyncio
import base64

import aiohttp
import anthropic
import ollama
import openai
import pytest
from daemon_process import Api, daemon
from tiny_models import build_tiny_model, place_models
from tiny_vision import png, tiny_vision_model

SEER, OTHER, ALONE, READER = "seer", "other-seer", "one-by-one", "reader"
QUESTION = "What is here?"
RED, BLUE, NOISE = png("red"), png("blue"), png("noise")
COLD = {"temperature": 0}
GREEDY = {"temperature": 0, "max_tokens": 10}
# A vision model whose encoder has work for a while.
SLOW = "slow-seer"
SLOW_ENCODER = {"vision_config": {"depth": 24, "embed_dim": 256, "num_heads": 8}}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    models = place_models(
        folder / "models",
        {
            SEER: tiny_vision_model("qwen2_vl"),
            OTHER: tiny_vision_model("gemma3"),
            ALONE: tiny_vision_model("paligemma"),
            SLOW: tiny_vision_model("qwen2_vl", **SLOW_ENCODER),
        },
    )
    build_tiny_model(models / READER, "tiny")
    with daemon(folder / "daemon", models, "[images]\nmax_pixels = 1000000\n") as running:
        yield running


@pytest.fixture
async def client(served):
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(served):
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="unused", max_retries=0) as client:
        yield client


def data_url(image: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def content(*parts: str | bytes) -> list[dict]:
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]


def user(*parts: str | bytes) -> list[dict]:
    return [{"role": "user", "content": content(*parts)}]


async def said(client, model: str, messages: list[dict], **options) -> str:
    answer = await client.chat.completions.create(model=model, messages=messages, **{**GREEDY, **options})
    return answer.choices[0].message.content


async def streamed(client, model: str, messages: list[dict]) -> str:
    stream = await client.chat.completions.create(model=model, messages=messages, stream=True, **GREEDY)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


@pytest.mark.parametrize("model", [SEER, OTHER, ALONE])
async def test_an_image_streamed_and_not_gives_one_answer_and_another_image_another(client, model):
    red, blue = [await said(client, model, user(QUESTION, image)) for image in (RED, BLUE)]
    assert red != blue
    assert await streamed(client, model, user(QUESTION, RED)) == red
    assert await said(client, model, [{"role": "user", "content": QUESTION}]) not in {red, blue}


@pytest.mark.parametrize("model", [SEER, OTHER, ALONE])
async def test_four_at_once_with_and_without_images_get_what_each_gets_alone(client, model):
    chats = [
        user(QUESTION, RED),
        user(BLUE, "And here, before the text?"),
        user("No image."),
        user(NOISE, "A short one"),
    ]
    alone = [await said(client, model, chat) for chat in chats]
    assert await asyncio.gather(*[said(client, model, chat) for chat in chats]) == alone
    assert len(set(alone)) == len(alone)


async def test_usage_counts_image_tokens_and_what_the_cache_gave(client):
    image = png("counted")
    text = await client.chat.completions.create(model=SEER, messages=user(QUESTION), **GREEDY)
    first, again = [
        await client.chat.completions.create(model=SEER, messages=user(image, QUESTION), **GREEDY) for _ in range(2)
    ]
    # 100 x 80 pixels are 4 x 3 squares of 28, between two markers
    assert first.usage.prompt_tokens == text.usage.prompt_tokens + 14
    assert again.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1


async def test_every_facade_gives_the_same_answer_to_the_same_image(served, client, claude):
    expected = await said(client, SEER, user(RED, QUESTION))
    encoded = base64.b64encode(RED).decode()
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
    messages = [{"role": "user", "content": [block, {"type": "text", "text": QUESTION}]}]
    message = await claude.messages.create(model=SEER, max_tokens=10, messages=messages, extra_body=COLD)
    assert message.content[0].text == expected
    async with claude.messages.stream(model=SEER, max_tokens=10, messages=messages, extra_body=COLD) as stream:
        assert await stream.get_final_text() == expected
    counted = await claude.messages.count_tokens(model=SEER, messages=messages)
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    spoken = await ollama.AsyncClient(served.url).chat(
        SEER, [{"role": "user", "content": QUESTION, "images": [RED]}], options={"temperature": 0, "num_predict": 10}
    )
    assert spoken.message.content == expected
    part = {"type": "input_image", "image_url": data_url(RED), "detail": "auto"}
    answer = await client.responses.create(
        model=SEER,
        input=[{"role": "user", "content": [part, {"type": "input_text", "text": QUESTION}]}],
        temperature=0,
        max_output_tokens=10,
    )
    assert answer.output_text == expected


async def test_a_chat_goes_on_about_an_image_in_its_history(client):
    first = await said(client, SEER, user(NOISE, QUESTION))
    turns = [*user(NOISE, QUESTION), {"role": "assistant", "content": first}, {"role": "user", "content": "And then?"}]
    answer = await client.chat.completions.create(model=SEER, messages=turns, **GREEDY)
    other = await said(client, SEER, [*user(BLUE, QUESTION), *turns[1:]])
    assert answer.choices[0].message.content != other
    assert answer.usage.prompt_tokens_details.cached_tokens > 14


async def test_clients_see_what_each_model_can_do(served, client):
    models = {model.id: model.model_extra["capabilities"] for model in (await client.models.list()).data}
    assert {name for name, can in models.items() if "vision" in can} == {SEER, OTHER, ALONE, SLOW}
    shown = await ollama.AsyncClient(served.url).show(SEER)
    assert "vision" in shown.capabilities
    async with Api(served.url) as api:
        assert "vision" in (await api.get(f"/admin/models/{SEER}"))["capabilities"]
        assert "vision" not in (await api.get(f"/admin/models/{READER}"))["capabilities"]


async def test_an_image_to_a_text_model_is_refused_before_it_is_loaded(served, client):
    with pytest.raises(openai.BadRequestError) as refused:
        await said(client, READER, user(RED, QUESTION))
    assert refused.value.code == "unsupported_capability"
    assert refused.value.param == "messages[0].content[0]"
    async with Api(served.url) as api:
        assert (await api.get(f"/admin/models/{READER}"))["state"] == "unloaded"


@pytest.mark.parametrize(
    "url",
    [
        data_url(b""),
        data_url(RED[: len(RED) // 2]),
        data_url(b"\x89PNG\r\n\x1a\n" + b"\0" * 64),
        data_url(b"GIF89a"),
        data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
        data_url(b"Not an image at all."),
        "data:image/png;base64,!!!",
        "http://example.com/x.png",
        "file:///etc/passwd",
    ],
)
async def test_what_is_no_image_is_refused_with_its_place_and_the_next_request_is_served(client, url):
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(openai.BadRequestError) as refused:
        await said(client, SEER, [{"role": "user", "content": [{"type": "text", "text": QUESTION}, part]}])
    assert refused.value.code == "invalid_request"
    assert refused.value.param.startswith("messages[0].content[1]")
    assert await said(client, SEER, user(QUESTION, RED))


async def test_an_image_of_too_many_pixels_is_refused(client):
    with pytest.raises(openai.BadRequestError, match=r"images\.max_pixels"):
        await said(client, SEER, user(QUESTION, png("white", (1000, 1001))))


async def idle(api: Api, model: str) -> dict:
    """The model once its engine has nothing to do."""
    async with asyncio.timeout(20):
        while (shown := await api.get(f"/admin/models/{model}"))["engine"]["running"] or shown["leases"]:
            await asyncio.sleep(0.02)
    return shown


async def test_a_client_that_leaves_during_encoding_frees_everything(served, client):
    big = png("left alone", (112, 112))
    await said(client, SLOW, [{"role": "user", "content": QUESTION}])
    async with Api(served.url) as api, aiohttp.ClientSession(served.url) as http:
        body = {"model": SLOW, "messages": user(big, QUESTION), **GREEDY, "stream": True}
        async with asyncio.timeout(20):
            request = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            while not [one for one in (await api.get("/admin/requests"))["data"] if one["state"] == "prefilling"]:
                await asyncio.sleep(0.002)
            request.cancel()
        shown = await idle(api, SLOW)
        assert shown["kv_bytes"] == 0
    assert await said(client, SLOW, user(big, QUESTION)) == await streamed(client, SLOW, user(big, QUESTION))
