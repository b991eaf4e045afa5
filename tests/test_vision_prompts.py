"""Chats with images become prompts: every image at its own place, whatever else the texts hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from engine_harness import engine_on, lane_pool
from tiny_vision import build_tiny_vision_model, png, tiny_vision_model
from vision_harness import EXACT, ask, decoded, file_of, outputs_of, request, said, user

from mlxd.engines import image_files
from mlxd.engines.core import EngineCore
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.image_files import decode_image, image_digest
from mlxd.engines.prompt_images import EncodedPrompt, ImageInput

# What stands for an image in a rendered chat, and for a token of it in a prompt.
MARKERS = {
    "aya_vision": ["<image>", "<|IMG_PATCH|>"],
    "gemma3": ["<start_of_image>", "<image_soft_token>"],
    "internvl_chat": ["<image>", "<IMG_CONTEXT>"],
    "mistral3": ["[IMG]"],
    "qwen2_5_vl": ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>"],
    "qwen3_vl": ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>"],
}
# Processors write these while they count an image's tokens.
PLACEHOLDERS = ["<|placeholder|>", "<placeholder>"]
FIRST, SECOND = png("first", (60, 80)), png("second", (150, 60))
# As Qwen's, with tools in the manner of models whose calls are JSON.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] or [] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% for tool_call in m['tool_calls'] or [] %}{% set tool_call = tool_call.function %}"
    '<tool_call>{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


class Running:
    """An engine that runs between tests."""

    def __init__(self, runner: asyncio.Runner, engine: EngineCore) -> None:
        self.runner, self.engine = runner, engine

    def prompt(self, *messages, **options) -> EncodedPrompt:
        return self.engine.tokenizer.encode_prompt(messages, **options)

    def text(self, *messages, **options) -> str:
        return self.engine.tokenizer.render_chat(messages, **options)

    def refusal(self, *messages) -> InvalidRequest:
        with pytest.raises(InvalidRequest) as refused:
            self.prompt(*messages)
        return refused.value

    def answer(self, *messages) -> list[int]:
        return self.runner.run(ask(self.engine, *messages))


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """Gives an engine of a family, loaded once."""
    engines: dict[str, Running] = {}
    stack = AsyncExitStack()

    async def load(family: str, overrides: dict[str, Any]) -> EngineCore:
        lanes = await stack.enter_async_context(lane_pool())
        path = tiny_vision_model(family, **overrides)
        return await stack.enter_async_context(engine_on(path, lanes, vision=True))

    with asyncio.Runner() as runner:

        def of(family: str, **overrides: Any) -> Running:
            key = repr((family, overrides))
            if key not in engines:
                engines[key] = Running(runner, runner.run(load(family, overrides)))
            return engines[key]

        yield of
        runner.run(stack.aclose())


@pytest.fixture(params=MARKERS)
def family(request, running) -> tuple[str, Running]:
    return request.param, running(request.param)


def digests(prompt: EncodedPrompt) -> list[bytes]:
    assert prompt.images is not None
    return [image.digest for image in prompt.images.images]


def digest(file: bytes) -> bytes:
    return image_digest(decoded(file))


def test_images_stand_in_the_order_of_the_messages_with_their_texts_between_them(family):
    _, model = family
    chat = [user("One", FIRST, "two", SECOND, "three", FIRST), said("Yes."), user(SECOND, "four")]
    prompt = model.prompt(*chat)
    assert digests(prompt) == [digest(file) for file in (FIRST, SECOND, FIRST, SECOND)]
    text = "".join(model.engine.tokenizer.token_bytes(token).decode() for token in prompt.tokens)
    mark = model.engine.tokenizer.token_bytes(prompt.images.token).decode()
    words = ["One", mark, "two", mark, "three", mark, "Yes", mark, "four"]
    found = [0]
    for word in words:
        found.append(text.index(word, found[-1] + 1))
    # nothing of an image stands before or behind its place
    counts = [text[start:end].count(mark) for start, end in pairwise([found[place] for place in (1, 3, 5, 7, 9)])]
    assert counts == [image.tokens for image in prompt.images.images]


def test_a_marker_is_text_where_there_are_no_images(family):
    name, model = family
    before = model.answer(user(FIRST, "What is here?"))
    for marker in [*MARKERS[name], *PLACEHOLDERS]:
        prompt = model.prompt(user(f"What does {marker} mean?"))
        assert prompt.images is None
        assert len(model.answer(user(f"What does {marker} mean?"))) == EXACT.max_tokens
    assert model.answer(user(FIRST, "What is here?")) == before


def test_a_marker_in_a_text_beside_images_is_refused_wherever_it_stands(family):
    name, model = family
    for marker in [*MARKERS[name], *PLACEHOLDERS]:
        for chat in (
            [user(f"What does {marker} mean?", FIRST)],
            [user(FIRST, f"What does {marker} mean?")],
            [user(FIRST, SECOND, marker)],
            [user(FIRST, "What is here?"), said(f"It is {marker}."), user("Why?")],
            [user(marker), said("Yes."), user(FIRST, "And here?")],
            [user(f"You know {marker}.", role="system"), user(FIRST, "And here?")],
        ):
            refused = model.refusal(*chat)
            assert refused.param == "messages"
            assert "stands for an image in this model's prompts; leave it out" in str(refused)
            assert str(refused).split()[3].rstrip(",") in marker


def test_what_stands_for_a_video_is_refused_beside_images_and_text_without(running):
    model = running("qwen3_vl")
    text = "What does <|vision_start|><|video_pad|><|vision_end|> mean?"
    refused = model.refusal(user(FIRST, text))
    assert refused.param == "messages"
    assert "<|video_pad|>, which stands for a video or a sound in this model's prompts; leave it out" in str(refused)
    assert len(model.answer(user(text))) == EXACT.max_tokens


def test_what_only_looks_like_a_marker_is_text(family):
    _, model = family
    text = "if a < b: <img src=''> [IMAGE] <|im|> placeholder <b>image</b>"
    assert digests(model.prompt(user(FIRST, text))) == [digest(FIRST)]


def test_an_image_takes_the_same_tokens_whatever_stands_around_it(family):
    _, model = family
    alone = model.prompt(user(FIRST, "x")).images.images[0].tokens
    together = model.prompt(user("Some text", SECOND, "more", FIRST)).images.images[1].tokens
    assert alone == together > 0


def test_usage_counts_the_tokens_of_images(family):
    _, model = family
    prompt, plain = model.prompt(user(FIRST, "What?")), model.prompt(user("What?"))
    outputs = model.runner.run(outputs_of(model.engine, request(model.engine, user(FIRST, "What?"))))
    assert outputs[-1].usage.prompt_tokens == len(prompt.tokens)
    assert len(prompt.tokens) >= len(plain.tokens) + prompt.images.tokens


def test_an_image_where_the_template_writes_none_is_refused_by_its_place(family):
    name, model = family
    for role in ("system", "assistant"):
        message = {"role": role, "content": user(FIRST, "Look.")["content"]}
        message["content"][0]["image"] = ImageInput(FIRST, "messages[1].content[0].image_url", 10**6)
        refused = model.refusal(user("Hi."), message, user("And?"))
        assert refused.param == "messages[1].content[0].image_url", name
        assert f"no image in a message of role {role}" in str(refused)


def test_a_chat_may_go_on_where_an_answer_has_begun(family):
    _, model = family
    begun = {"add_generation_prompt": False, "continue_final_message": True}
    chat = [user(FIRST, "What is here?"), said("It is a")]
    assert model.text(*chat, template=begun).endswith("It is a")
    prompt = model.prompt(*chat, template=begun)
    assert digests(prompt) == [digest(FIRST)]
    assert len(prompt.tokens) > len(model.prompt(chat[0], template={"add_generation_prompt": False}).tokens)


@pytest.mark.parametrize("size", [(4, 900), (900, 4), (4, 4), (5, 7)])
def test_a_thin_or_tiny_image_is_answered_or_refused_and_never_more(family, size):
    _, model = family
    chat = user(png("noise", size), "What is here?")
    try:
        model.prompt(chat)
    except InvalidRequest as refused:
        message, param = str(refused), refused.param
        assert (param, len(message) > 30) == ("messages", True)
    else:
        assert len(model.answer(chat)) == EXACT.max_tokens


def test_a_broken_image_is_refused_by_its_own_place_among_others(family):
    _, model = family
    content = user(FIRST, "is not", FIRST[:-100])["content"]
    content[2]["image"] = ImageInput(FIRST[:-100], "messages[0].content[2].image_url", 10**6)
    assert model.refusal({"role": "user", "content": content}).param == "messages[0].content[2].image_url"


def test_equal_files_are_decoded_once_and_a_broken_one_is_named_by_its_first_place(running, monkeypatch):
    model, places = running("qwen3_vl"), []

    def watched(image: ImageInput, taken: int) -> Any:
        places.append(image.param)
        return decode_image(image, taken)

    monkeypatch.setattr(image_files, "decode_image", watched)
    assert len(digests(model.prompt(user(FIRST, SECOND, FIRST, "or", SECOND)))) == 4
    assert places == ["messages[0].content[0]", "messages[0].content[1]"]
    assert model.refusal(user(SECOND, FIRST[:-100], FIRST[:-100])).param == "messages[0].content[1]"


def test_tools_are_offered_beside_images_and_their_results_may_hold_images(running):
    model = running("qwen3_vl", template=TOOL_TEMPLATE)
    assert model.engine.tokenizer.has_tools
    call = {"type": "function", "id": "1", "function": {"name": "look_up", "arguments": {"what": "a tree"}}}
    chat = [
        user("Be short.", role="system"),
        user(FIRST, "Look that up."),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": user("It is", SECOND)["content"]},
        user("And?"),
    ]
    text = model.text(*chat, tools=[TOOL])
    assert '"look_up"' in text
    assert '{"what": "a tree"}' in text
    assert digests(model.prompt(*chat, tools=[TOOL])) == [digest(FIRST), digest(SECOND)]
    assert len(model.answer(*chat)) == EXACT.max_tokens


def test_threads_at_once_make_the_prompts_that_one_makes(family):
    _, model = family
    files = [FIRST, SECOND, file_of(decoded(FIRST), "JPEG"), png("third", (90, 90))]
    chats = [
        [user(file, f"Number {number}"), said("Yes."), user("And", files[number % 4])]
        for number in range(4)
        for file in files
    ]
    expected = [facts(model.prompt(*chat)) for chat in chats]
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda chat: facts(model.prompt(*chat)), chats * 3))
    assert made == expected * 3


def facts(prompt: EncodedPrompt) -> Any:
    """All that a prompt consists of."""
    arrays = [
        {name: (array.shape, array.tobytes()) for name, array in inputs.items()}
        for inputs in (prompt.images.inputs, *(image.inputs for image in prompt.images.images))
    ]
    return list(prompt.tokens), digests(prompt), arrays


@pytest.mark.parametrize(
    "content", ["m['content'] + '\\n'", "m['content'] ~ '\\n'"], ids=["that fails with a list", "that writes a list"]
)
async def test_a_template_for_text_alone_gets_images_as_what_stands_for_them(tmp_path, content):
    turns = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{{ " + content + " }}{% endfor %}"
    folder = build_tiny_vision_model(tmp_path / "seer", "internvl_chat", template=turns)
    async with lane_pool() as lanes, engine_on(folder, lanes, vision=True) as engine:
        red, blue = [await ask(engine, user(png(colour), "What is here?")) for colour in ("red", "blue")]
        assert red != blue
        asked = request(engine, user("First", png("red"), "then", png("blue")))
        assert len(asked.images.images) == 2
        assert await ask(engine, user("No image.")) not in (red, blue)
