"""Images that came before: encoded once, never taken for another, and kept within the budget of prefixes."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from engine_harness import engine_on, lane_pool, until_idle
from PIL import Image
from tiny_vision import png, tiny_vision_model
from vision_harness import (
    EXACT,
    PLENTY,
    ask,
    ask_all,
    file_of,
    outputs_of,
    request,
    said,
    tokens_in,
    user,
    watched_encodings,
)

from mlxd.engines.backend import mlx_backend
from mlxd.engines.lanes import LanePool
from mlxd.engines.prefix_folder import PrefixFolder

FIRST, SECOND = png("first", (90, 90)), png("second", (90, 90))
QUESTION = "What is here, and why?"
LONG = "Look at this picture from its top to its bottom, and say what you see: "


@pytest.fixture(scope="module", params=["qwen3_vl", "lfm2_vl"])
def model(request) -> Path:
    return tiny_vision_model(request.param)


@pytest.fixture
async def lanes():
    async with lane_pool() as pool:
        yield pool


def keeping(model, lanes, **options):
    return engine_on(model, lanes, **{"vision": True, "prefix_cache_bytes": PLENTY, "prefill_chunk": 16, **options})


@pytest.fixture(scope="module")
def known(model) -> dict[str, list[int]]:
    """Answers of engines of their own."""
    return {}


@pytest.fixture
def fresh(model, lanes, known):
    async def answer(*messages) -> list[int]:
        """What an engine of its own answers."""
        key = repr([_plain(message) for message in messages])
        if key not in known:
            async with keeping(model, lanes) as engine:
                known[key] = await ask(engine, *messages)
        return known[key]

    return answer


def _plain(message) -> str:
    content = message["content"]
    return str(content if isinstance(content, str) else [part.get("text") or part["image"].data for part in content])


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)], ids=["first-second", "second-first"])
async def test_two_images_with_the_same_text_never_have_the_same_answer_whichever_came_first(
    model, lanes, fresh, order
):
    alone = [await fresh(user(image, QUESTION)) for image in order]
    async with keeping(model, lanes) as engine:
        kept = [await ask(engine, user(image, QUESTION)) for image in (*order, *order)]
        together = await ask_all(engine, [[user(image, QUESTION)] for image in (*order, *order)])
    assert alone[0] != alone[1]
    assert kept == together == alone * 2


async def test_an_image_that_comes_again_is_encoded_once(model, lanes):
    async with keeping(model, lanes) as engine:
        with watched_encodings() as encodings:
            await ask(engine, user(FIRST, QUESTION))
            await ask(engine, user("Something else:", FIRST))
            await ask(engine, user("And what about", FIRST, "together with", SECOND))
            assert len(encodings) == 2
            await engine.trim_prefix_cache(0)
            await ask(engine, user(FIRST, QUESTION))
            assert len(encodings) == 3


async def test_requests_at_once_with_the_same_image_have_it_encoded_once(model, lanes, fresh):
    chats = [user(FIRST, question) for question in (QUESTION, "Why?", QUESTION)]
    # without a budget only rows hold the features
    async with keeping(model, lanes, prefix_cache_bytes=0, prefill_chunk=128, burst_window=0.1) as engine:
        requests = [request(engine, chat) for chat in chats]
        with watched_encodings() as encodings:
            answers = await asyncio.gather(*[outputs_of(engine, one) for one in requests])
            assert len(encodings) == 1
    assert [tokens_in(outputs) for outputs in answers] == [await fresh(chat) for chat in chats]


async def test_an_image_that_is_twice_in_one_prompt_is_encoded_once(model, lanes):
    async with keeping(model, lanes, prefix_cache_bytes=0) as engine:
        with watched_encodings() as encodings:
            twice = await ask(engine, user(FIRST, "is as", FIRST, "or not?"))
            assert len(encodings) == 1
        assert twice != await ask(engine, user(FIRST, "is as", SECOND, "or not?"))


async def test_the_same_pixels_in_another_format_are_the_same_image(model, lanes):
    webp = io.BytesIO()
    Image.open(io.BytesIO(FIRST)).save(webp, "WEBP", lossless=True)
    async with keeping(model, lanes) as engine:
        with watched_encodings() as encodings:
            first = await ask(engine, user(FIRST, QUESTION))
            (*_, last) = outputs = await outputs_of(engine, request(engine, user(webp.getvalue(), QUESTION)))
            assert len(encodings) == 1
    assert tokens_in(outputs) == first
    assert last.usage.cached_tokens == last.usage.prompt_tokens - 1


async def test_a_chat_goes_on_after_its_image_without_encoding_it_again(model, lanes, fresh):
    history = [user(FIRST, QUESTION), said("A house."), user("And behind it?")]
    async with keeping(model, lanes) as engine:
        (*_, first) = await outputs_of(engine, request(engine, history[0]))
        with watched_encodings() as encodings:
            outputs = await outputs_of(engine, request(engine, *history))
            assert len(encodings) == 0
    assert tokens_in(outputs) == await fresh(*history)
    # but for what ends the first prompt, which an answer's own beginning may write in other tokens
    assert outputs[-1].usage.cached_tokens >= first.usage.prompt_tokens - 8


async def test_a_second_image_that_is_added_later_is_the_only_one_to_be_encoded(model, lanes, fresh):
    history = [user(FIRST, QUESTION), said("A house."), user("And this?", SECOND)]
    async with keeping(model, lanes) as engine:
        await ask(engine, history[0])
        with watched_encodings() as encodings:
            answer = await ask(engine, *history)
            assert len(encodings) == 1
    assert answer == await fresh(*history)


async def test_without_a_budget_nothing_is_kept_and_answers_are_right(model, lanes, fresh):
    async with keeping(model, lanes, prefix_cache_bytes=0) as engine:
        with watched_encodings() as encodings:
            answers = [await ask(engine, user(FIRST, QUESTION)) for _ in range(2)]
            assert len(encodings) == 2
        await until_idle(engine)
        assert (engine.stats().prefix_cache_bytes, engine.stats().kv_bytes) == (0, 0)
    assert answers == [await fresh(user(FIRST, QUESTION))] * 2


async def test_features_and_prefixes_share_one_budget(model, lanes):
    budget = 200_000
    async with keeping(model, lanes, prefix_cache_bytes=budget) as engine:
        for number in range(8):
            image = png(f"image {number}", (90, 90))
            await ask_all(engine, [[user(image, QUESTION)], [user("Where is it?", image)]])
            assert 0 < engine.stats().prefix_cache_bytes <= budget
        await engine.trim_prefix_cache(budget // 4)
        assert engine.stats().prefix_cache_bytes <= budget // 4
        await engine.trim_prefix_cache(0)
        assert engine.stats().prefix_cache_bytes == 0


async def test_images_that_begin_with_the_same_pixels_share_nothing(model, lanes, fresh):
    top = Image.open(io.BytesIO(FIRST))
    other = top.copy()
    other.paste((0, 90, 200), (0, 45, 90, 90))
    neighbour = file_of(other, "PNG")
    async with keeping(model, lanes) as engine:
        first = request(engine, user(LONG, FIRST, QUESTION))
        await outputs_of(engine, first)
        outputs = await outputs_of(engine, request(engine, user(LONG, neighbour, QUESTION)))
    begins = first.prompt.index(first.images.token)
    assert outputs[-1].usage.cached_tokens <= begins
    assert tokens_in(outputs) == await fresh(user(LONG, neighbour, QUESTION))
    assert tokens_in(outputs) != await fresh(user(LONG, FIRST, QUESTION))


async def test_an_image_may_be_cut_anywhere_by_a_request_that_gave_up(model, lanes, fresh):
    # a chunk ends within the image, and the next request goes on from there
    sampling = replace(EXACT, max_tokens=1)
    alone = [await fresh(user(image, QUESTION)) for image in (FIRST, SECOND)]
    for chunk in (6, 9):
        async with keeping(model, lanes, prefill_chunk=chunk, max_stall=None) as engine:
            given_up = request(engine, user(FIRST, QUESTION), sampling=sampling)
            async with engine.generate(given_up):
                async with asyncio.timeout(20):
                    while not engine.stats().kv_bytes:
                        await asyncio.sleep(0.001)
            await until_idle(engine)
            assert await ask_all(engine, [[user(image, QUESTION)] for image in (FIRST, SECOND)]) == alone


async def test_prefixes_with_images_outlive_an_unload_on_the_disk(tmp_path, model):
    folder = PrefixFolder(tmp_path, PLENTY, mlx_backend)
    lanes = LanePool(partial(mlx_backend, folder))
    try:
        async with keeping(model, lanes, prefix_disk_bytes=PLENTY) as engine:
            wanted = {image: await ask(engine, user(image, QUESTION)) for image in (FIRST, SECOND)}
            assert wanted[FIRST] != wanted[SECOND]
            await engine.trim_prefix_cache(0)
            await ask(engine, user(FIRST, QUESTION))
        async with keeping(model, lanes, prefix_disk_bytes=PLENTY) as engine:
            with watched_encodings() as encodings:
                (*_, other) = outputs = await outputs_of(engine, request(engine, user(SECOND, QUESTION)))
                assert (tokens_in(outputs), len(encodings)) == (wanted[SECOND], 1)
                (*_, same) = outputs = await outputs_of(engine, request(engine, user(FIRST, QUESTION)))
                assert (tokens_in(outputs), len(encodings)) == (wanted[FIRST], 1)
        assert other.usage.cached_tokens < other.usage.prompt_tokens // 2
        assert same.usage.cached_tokens == same.usage.prompt_tokens - 1
    finally:
        assert await asyncio.to_thread(lanes.close, 20)
        assert folder.close(20)
