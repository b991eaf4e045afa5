"""Images reach the model from every API, in their order and once; what cannot is refused before anything is loaded."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest
from api_calls import CHAT, ask, refusal, within
from api_fakes import SEES, SPECS, last, serving
from image_bodies import (
    GIF,
    JPEG,
    PNG,
    anthropic_image,
    b64,
    data_url,
    openai_image,
    openai_url,
    png,
    responses_image,
    text,
)

from mlxd.daemon.api import images
from mlxd.daemon.settings import ImagesSettings
from mlxd.engines.prompt_images import ImageInput
from mlxd.registry.spec import ModelKind

MESSAGES, OLLAMA, GENERATE, RESPONSES = "/v1/messages", "/api/chat", "/api/generate", "/v1/responses"
SPECS = (*SPECS, SEES)
# it begins as an image, and the decoder finds out
BROKEN = PNG[:8] + b"broken"
PIXELS = ImagesSettings().max_pixels


def seeing(**settings):
    return serving(specs=SPECS, **settings)


def user(*parts):
    return {"role": "user", "content": list(parts)}


def chat(*messages, **fields):
    return {"model": "sees", "messages": list(messages), **fields}


def message(*messages, **fields):
    return chat(*messages, max_tokens=5, **fields)


def image(data, param):
    return {"type": "image", "image": ImageInput(data, param, PIXELS)}


async def shown(body, path=CHAT, **settings):
    """The messages that the model's tokenizer is given for a body, and the request that the engine gets."""
    async with seeing(**settings) as served:
        asking = asyncio.ensure_future(ask(served, body, path))
        request = await within(served.engine.arrivals.get())
        served.engine.put(request, last("ok"))
        status, answer = await asking
        assert status == 200, answer
        [(messages, _)] = served.engine.tokenizer.chats
        return messages, request


# ---- what the model is shown


async def test_images_stand_where_they_came_among_the_texts_of_a_chat():
    body = chat(
        user(openai_image(PNG), text("one"), text("two")),
        {"role": "assistant", "content": "I see."},
        user(text("and"), openai_image(JPEG), openai_image(GIF), text("these?")),
        user(text("plain"), text("text")),
    )
    messages, request = await shown(body)
    assert [each["content"] for each in messages] == [
        [image(PNG, "messages[0].content[0]"), text("one\ntwo")],
        "I see.",
        [
            text("and"),
            image(JPEG, "messages[2].content[1]"),
            image(GIF, "messages[2].content[2]"),
            text("these?"),
        ],
        "plain\ntext",
    ]
    assert [each.inputs["file"].tobytes() for each in request.images.images] == [PNG, JPEG, GIF]


async def test_a_chat_without_images_is_the_plain_text_that_it_was():
    messages, request = await shown(chat(user(text("a"), text("b"))))
    assert messages == [{"role": "user", "content": "a\nb"}]
    assert request.images is None


async def test_an_image_alone_is_a_message():
    messages, _ = await shown(chat(user(openai_image())))
    assert messages[0]["content"] == [image(PNG, "messages[0].content[0]")]


async def test_every_choice_has_the_images():
    async with seeing() as served:
        asking = asyncio.ensure_future(ask(served, chat(user(openai_image()), n=2)))
        requests = [await within(served.engine.arrivals.get()) for _ in range(2)]
        for request in requests:
            served.engine.put(request, last("ok"))
        assert (await asking)[0] == 200
    assert requests[0].images is requests[1].images is not None


async def test_anthropic_messages_have_images_in_turns_and_in_results():
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1"}
    body = message(
        user(text("look"), anthropic_image(PNG)),
        {"role": "assistant", "content": [call]},
        user({**result, "content": [text("here"), anthropic_image(JPEG, "image/jpeg")]}, text("well?")),
    )
    messages, request = await shown(body, MESSAGES)
    assert messages[0]["content"] == [text("look"), image(PNG, "messages[0].content[1]")]
    assert messages[2] == {
        "role": "tool",
        "content": [text("here"), image(JPEG, "messages[2].content[0].content[1]")],
        "tool_call_id": "t1",
        "name": "look",
    }
    assert messages[3]["content"] == "well?"
    assert len(request.images.images) == 2


@pytest.mark.parametrize(
    ("content", "first"),
    [
        ([anthropic_image()], [text("Error"), image(PNG, "messages[2].content[0].content[0]")]),
        (
            [text("no"), anthropic_image()],
            [text("Error: no"), image(PNG, "messages[2].content[0].content[1]")],
        ),
    ],
)
async def test_a_failed_result_with_an_image_is_marked_in_words(content, first):
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    failed = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": content}
    body = message(user(text("look")), {"role": "assistant", "content": [call]}, user(failed))
    messages, _ = await shown(body, MESSAGES)
    assert messages[2]["content"] == first


async def test_ollamas_images_come_before_the_text():
    body = chat({"role": "user", "content": "what?", "images": [b64(PNG), b64(GIF)]}, stream=False)
    messages, _ = await shown(body, OLLAMA)
    both = [image(PNG, "messages[0].images[0]"), image(GIF, "messages[0].images[1]")]
    assert messages[0]["content"] == [*both, text("what?")]


async def test_ollamas_tools_may_answer_with_images():
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    body = chat({"role": "user", "content": "x"}, called, {"role": "tool", "images": [b64(PNG)]}, stream=False)
    messages, _ = await shown(body, OLLAMA)
    assert messages[2]["content"] == [image(PNG, "messages[2].images[0]")]


async def test_a_generated_prompt_has_images_too():
    body = {"model": "sees", "prompt": "what?", "system": "Look.", "images": [b64(PNG)], "stream": False}
    messages, _ = await shown(body, GENERATE)
    assert [each["content"] for each in messages] == ["Look.", [image(PNG, "images[0]"), text("what?")]]


async def test_the_input_of_a_response_has_images_in_messages_and_outputs():
    said = {"type": "input_text", "text": "look"}
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    body = {
        "model": "sees",
        "instructions": "Look.",
        "input": [
            user(said, responses_image(PNG)),
            call,
            {"type": "function_call_output", "call_id": "c1", "output": [responses_image(JPEG)]},
        ],
    }
    messages, _ = await shown(body, RESPONSES)
    assert messages[1]["content"] == [text("look"), image(PNG, "input[0].content[1]")]
    assert messages[3]["content"] == [image(JPEG, "input[2].output[0]")]


async def test_a_conversation_that_is_kept_keeps_its_images():
    async with seeing() as served:
        first = {"model": "sees", "input": [user(responses_image(PNG, detail="low"))]}
        _, answer = await ask(served, first, RESPONSES, last("a square"))
        kept = json.loads(answer)["id"]
        second = {"model": "sees", "input": "sure?", "previous_response_id": kept}
        status, _ = await ask(served, second, RESPONSES, last("yes"))
        async with aiohttp.ClientSession(served.url) as http, http.get(f"{RESPONSES}/{kept}/input_items") as listed:
            [item] = (await listed.json())["data"]
    assert status == 200
    assert served.engine.tokenizer.chats[-1][0][0]["content"] == [image(PNG, "previous_response_id.content[0]")]
    assert item["content"] == [{"type": "input_image", "image_url": data_url(PNG), "detail": "low"}]


# ---- what counts


async def test_the_tokens_of_images_are_counted():
    async with seeing() as served:
        for path, body, read in (
            ("/v1/messages/count_tokens", chat(user(text("ab"), anthropic_image())), lambda said: said["input_tokens"]),
            ("/v1/tokenize", chat(user(text("ab"), openai_image())), lambda said: said["count"]),
            (
                "/v1/responses/input_tokens",
                {"model": "sees", "input": [user({"type": "input_text", "text": "ab"}, responses_image())]},
                lambda said: said["input_tokens"],
            ),
        ):
            status, answer = await ask(served, body, path)
            assert (status, read(json.loads(answer))) == (200, len("ab#>"))
        assert served.engine.arrivals.empty()


async def test_the_bytes_of_images_are_no_text_of_a_prompt():
    # a prompt of more than a million characters would have to be rendered, which this tokenizer cannot do
    messages, _ = await shown(chat(user(text("x"), openai_image(png(padding=2_000_000)))))
    assert len(messages[0]["content"][1]["image"].data) > 2_000_000


async def test_a_detail_changes_nothing_and_is_named():
    part = responses_image(detail="high")
    for path, body, names in (
        (CHAT, chat(user(openai_image(detail="original"))), "messages.content.image_url.detail"),
        (RESPONSES, {"model": "sees", "input": [user(part)]}, "input.content.detail"),
        ("/v1/tokenize", chat(user(openai_image(detail="auto"))), "messages.content.image_url.detail"),
        (CHAT, chat(user(openai_image(), openai_image(detail=None))), None),
    ):
        async with seeing() as served, aiohttp.ClientSession(served.url) as http:
            asking = asyncio.ensure_future(http.post(path, json=body))
            if path != "/v1/tokenize":
                served.engine.put(await within(served.engine.arrivals.get()), last("ok"))
            answer = await asking
            assert (answer.status, answer.headers.get("X-Mlxd-Ignored")) == (200, names)


# ---- what is refused

BAD = [
    (CHAT, chat(user(openai_url("data:text/plain;base64,AAAA"))), "messages[0].content[0]"),
    (CHAT, chat(user(text("x"), openai_url("data:image/png;base64,!"))), "messages[0].content[1]"),
    (CHAT, chat(user(openai_url(data_url(b"%PDF-1.7")))), "messages[0].content[0]"),
    (CHAT, chat(user(openai_url(data_url(b"")))), "messages[0].content[0]"),
    (CHAT, chat(user(openai_image(BROKEN))), "messages[0].content[0]"),
    (CHAT, chat(user(openai_image()), user(openai_url("https://a.example/x.png"))), "messages[1].content[0]"),
    (CHAT, chat(user(openai_url("file:///etc/passwd"))), "messages[0].content[0]"),
    (CHAT, chat(user(openai_url("http://127.0.0.1:1/x.png"))), "messages[0].content[0]"),
    (CHAT, chat(user(openai_url(1))), "messages[0].content[0].image_url.url"),
    (CHAT, chat(user({"type": "image_url", "image_url": data_url(PNG)})), "messages[0].content[0].image_url"),
    (CHAT, chat(user({"type": "image_url"})), "messages[0].content[0].image_url"),
    (CHAT, chat(user(openai_image(detail="best"))), "messages[0].content[0].image_url.detail"),
    (CHAT, chat(user(*[openai_image()] * 17)), "messages[0].content[16]"),
    (CHAT, chat(user(text("x")), {"role": "system", "content": [openai_image()]}), "messages[1].content[0]"),
    (CHAT, chat({"role": "developer", "content": [openai_image()]}, user(text("x"))), "messages[0].content[0]"),
    (CHAT, chat(user(text("x")), {"role": "assistant", "content": [openai_image()]}), "messages[1].content[0]"),
    (CHAT, chat(user(text("x")), {"role": "tool", "content": [openai_image()]}), "messages[1].content[0]"),
    (MESSAGES, message(user(anthropic_image(kind="application/pdf"))), "messages[0].content[0]"),
    (MESSAGES, message(user(anthropic_image(b"GIF"))), "messages[0].content[0]"),
    (
        MESSAGES,
        message(user({"type": "image", "source": {"type": "file", "file_id": "f"}})),
        "messages[0].content[0].source",
    ),
    (
        MESSAGES,
        message(user({"type": "image", "source": {"type": "url", "url": "https://a.example/"}})),
        "messages[0].content[0]",
    ),
    (
        MESSAGES,
        message(user({**anthropic_image(), "transformations": {"oversized_image": "error"}})),
        "messages[0].content[0].transformations.oversized_image",
    ),
    (OLLAMA, chat({"role": "user", "images": [data_url(PNG)]}), "messages[0].images[0]"),
    (OLLAMA, chat({"role": "user", "content": "x", "images": [b64(PNG), "aGk="]}), "messages[0].images[1]"),
    (OLLAMA, chat({"role": "user", "images": [b64(BROKEN)]}), "messages[0].images[0]"),
    (GENERATE, {"model": "sees", "prompt": "x", "images": [""]}, "images[0]"),
    (GENERATE, {"model": "sees", "prompt": "x", "raw": True, "images": [b64(PNG)]}, "images"),
    (RESPONSES, {"model": "sees", "input": [user(responses_image(b"GIF"))]}, "input[0].content[0]"),
    (
        RESPONSES,
        {"model": "sees", "input": [user({"type": "input_image", "file_id": "f"})]},
        "input[0].content[0].file_id",
    ),
    (RESPONSES, {"model": "sees", "input": [user({"type": "input_image"})]}, "input[0].content[0].image_url"),
    (
        RESPONSES,
        {"model": "sees", "input": [user(responses_image(detail="best"))]},
        "input[0].content[0].detail",
    ),
    (
        RESPONSES,
        {"model": "sees", "input": [{"role": "system", "content": [responses_image()]}, user(responses_image())]},
        "input[0].content[0]",
    ),
    (
        RESPONSES,
        {"model": "sees", "input": [user(responses_image()), {"role": "assistant", "content": [responses_image()]}]},
        "input[1].content[0]",
    ),
]


async def test_an_image_that_cannot_be_taken_is_refused_with_its_place_and_reaches_no_engine():
    wrong = []
    async with seeing() as served, aiohttp.ClientSession(served.url) as http:
        for path, body, param in BAD:
            async with http.post(path, json=body) as answer:
                said = await answer.json()
                error = said if isinstance(said["error"], str) else said["error"]
                code = (answer.status, error["code"], error["param"])
                if code != (400, "invalid_request", param):
                    wrong.append((path, str(body)[:200], code, error))
        assert served.engine.arrivals.empty()
    assert not wrong, "\n".join(map(str, wrong))


async def test_only_what_the_decoder_finds_costs_a_load():
    async with seeing() as served, aiohttp.ClientSession(served.url) as http:
        for path, body, _ in BAD:
            if b64(BROKEN) not in json.dumps(body):
                async with http.post(path, json=body):
                    pass
        assert served.registry.waits.empty()


@pytest.mark.parametrize("settings", [{"max_count": 1}, {"max_bytes": len(PNG) - 1}])
async def test_the_limits_are_those_of_the_configuration(settings):
    body = chat(user(openai_image(), openai_image()))
    async with seeing(images=ImagesSettings(**settings)) as served:
        status, error = await refusal(served, body)
        assert (status, error["code"]) == (400, "invalid_request")
        assert f"images.{next(iter(settings))}" in error["message"]


async def test_the_decoder_is_told_how_many_pixels_are_taken():
    messages, _ = await shown(chat(user(openai_image())), images=ImagesSettings(max_pixels=9))
    assert messages[0]["content"][0]["image"].max_pixels == 9


EVERY_API = [
    (CHAT, chat(user(text("x"), openai_image())), "messages[0].content[1]"),
    ("/v1/tokenize", chat(user(text("x"), openai_image())), "messages[0].content[1]"),
    (MESSAGES, message(user(anthropic_image())), "messages[0].content[0]"),
    ("/v1/messages/count_tokens", chat(user(anthropic_image())), "messages[0].content[0]"),
    (OLLAMA, chat({"role": "user", "content": "x", "images": [b64(PNG)]}), "messages[0].images[0]"),
    (GENERATE, {"prompt": "x", "images": [b64(PNG)]}, "images[0]"),
    (RESPONSES, {"input": [user(responses_image())]}, "input[0].content[0]"),
    ("/v1/responses/input_tokens", {"input": [user(responses_image())]}, "input[0].content[0]"),
]


@pytest.mark.parametrize(("path", "body", "param"), EVERY_API)
async def test_a_model_that_takes_no_images_refuses_them_before_it_is_loaded(path, body, param):
    async with seeing() as served:
        status, answer = await ask(served, {**body, "model": "m"}, path)
        said = json.loads(answer)
        error = said if isinstance(said["error"], str) else said["error"]
        assert (status, error["code"], error["param"]) == (400, "unsupported_capability", param)
        assert served.registry.waits.empty()


async def test_a_refusal_says_why_a_model_takes_no_images(monkeypatch):
    blind = replace(SEES, takes_images=False)
    body = chat(user(openai_image()))
    async with serving(specs=(*SPECS[:2], blind)) as served:
        for installed, words in (({}, "pip install 'mlxd[vision]'"), ({"mlx_vlm": None}, "architecture")):
            monkeypatch.setattr(images, "installed_packages", lambda found=installed: found)
            _, error = await refusal(served, body)
            assert (error["code"], words in error["message"]) == ("unsupported_capability", True), error
        _, error = await refusal(served, {**body, "model": "m"})
        assert "takes text only" in error["message"]
        _, error = await refusal(served, {**body, "model": "org/embed"})
        assert "makes embeddings" in error["message"]


async def test_a_vision_model_that_was_loaded_as_a_text_model_refuses_images():
    async with seeing() as served:
        served.engine.tokenizer.takes_images = False
        _, error = await refusal(served, chat(user(openai_image())))
        assert (error["code"], error["param"]) == ("unsupported_capability", "messages[0].content[0]")
        assert (await ask(served, chat(user(text("x"))), CHAT, last("ok")))[0] == 200


def test_the_kinds_of_the_fakes_are_what_the_tests_think():
    assert [(spec.kind, spec.takes_images) for spec in SPECS] == [
        (ModelKind.TEXT, False),
        (ModelKind.EMBEDDING, False),
        (ModelKind.VISION, True),
    ]
