"""Images on a lane where something goes wrong, or where there is a crowd: who is served, and what is held meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from engine_harness import at_rest, engine_on, lane_pool
from tiny_vision import png, tiny_vision_model
from vision_harness import EXACT, ask, outputs_of, request, tokens_in, user, watched_encodings

from mlxd.engines import image_files, vision_runner
from mlxd.engines.errors import InvalidRequest, StepFailed
from mlxd.engines.prompt_images import ImageInput
from mlxd.engines.turns import ASIDE
from mlxd.engines.types import RequestState
from mlxd.engines.vision_encoder import Encoding, ImageEncoder
from mlxd.engines.vision_model import VisionLanguage

FIRST, SECOND = png("first", (90, 90)), png("second", (120, 60))
QUESTION = "What is here, and why?"
LONG = replace(EXACT, max_tokens=200)


@pytest.fixture
async def lanes():
    async with lane_pool() as pool:
        yield pool


@pytest.fixture
async def engine(lanes):
    async with running(lanes) as engine:
        yield engine


def running(lanes, **options):
    settings = {"vision": True, "prefill_chunk": 32, "max_stall": None, **options}
    return engine_on(tiny_vision_model("qwen3_vl"), lanes, **settings)


async def test_a_step_that_fails_while_an_image_is_half_encoded_drops_both_rows_and_no_more(engine, monkeypatch):
    monkeypatch.setattr(vision_runner, "STRETCH", 0.0)
    wanted = await ask(engine, user(FIRST, QUESTION))
    await at_rest(engine)
    before, step, begun = mx.get_active_memory(), VisionLanguage.__call__, []

    def failing(model, *arguments, **options):
        if begun:
            monkeypatch.setattr(VisionLanguage, "__call__", step)
            raise RuntimeError("no memory for this step")
        return step(model, *arguments, **options)

    with watched_encodings() as encodings:
        async with engine.generate(request(engine, user("Some text."), sampling=LONG)) as text:
            await anext(text)
            begun = encodings.begun
            monkeypatch.setattr(VisionLanguage, "__call__", failing)
            with pytest.raises(StepFailed, match="no memory for this step"):
                await outputs_of(engine, request(engine, user(FIRST, SECOND, QUESTION)))
            with pytest.raises(StepFailed):
                async for _ in text:
                    pass
        # not to its end: the second image was never begun
        assert len(encodings) == 1
    await at_rest(engine)
    assert mx.get_active_memory() <= before + 4096
    assert await ask(engine, user(FIRST, QUESTION)) == wanted


async def test_an_engine_at_rest_holds_no_image_of_its_last_request(engine):
    gone = threading.Event()
    asked = request(engine, user(FIRST, QUESTION))
    images = weakref.ref(asked.images, lambda _: gone.set())
    await outputs_of(engine, asked)
    del asked
    assert await asyncio.to_thread(gone.wait, 10)
    assert images() is None


async def test_a_picture_that_is_refused_is_gone_with_its_refusal(engine, monkeypatch):
    pictures, decode, gone = [], image_files.decode_image, threading.Event()

    def watched(image: ImageInput, taken: int) -> Any:
        picture = decode(image, taken)
        pictures.append(weakref.ref(picture, lambda _: gone.set()))
        return picture

    monkeypatch.setattr(image_files, "decode_image", watched)
    gc.disable()
    try:
        # Qwen's processors take no side that is more than 200 times the other
        with pytest.raises(InvalidRequest, match="image processor refused the images"):
            request(engine, user(png("narrow", (1200, 4)), QUESTION))
        # the thread that it was on may be a moment behind
        assert await asyncio.to_thread(gone.wait, 10)
        assert [picture() for picture in pictures] == [None]
    finally:
        gc.enable()


async def test_a_text_is_answered_while_many_images_wait_to_be_encoded(lanes, monkeypatch):
    monkeypatch.setattr(vision_runner, "STRETCH", 0.0)
    async with running(lanes, prefill_batch=4, prefill_chunk=512) as engine:
        with watched_encodings() as encodings:
            encodings.held.clear()
            images = [png(f"image {number}", (90, 90)) for number in range(12)]
            flood = [asyncio.create_task(ask(engine, user(image, QUESTION))) for image in images]
            await encodings.until_held()
            text = asyncio.create_task(ask(engine, user("Some text.")))
            await asyncio.sleep(0)
            encodings.held.set()
            await text
            assert len(encodings) <= 4
            prefilling = [one for one in engine.requests() if one.state is RequestState.PREFILLING]
            assert len(prefilling) <= 2
            await asyncio.gather(*flood)


async def test_what_a_row_holds_of_its_images_does_not_make_what_it_still_takes_less(engine, monkeypatch):
    joining, demands = vision_runner.VisionRunner._join_with, []

    def joined(runner, waiting):
        joining(runner, waiting)
        prefixes = runner._prefixes
        # without a budget only the row has them
        assert prefixes.unkept_nbytes > prefixes.features_nbytes == 0
        demands.append(runner.demand(None, 32))
        prefixes._features.update(prefixes._alive)
        assert prefixes.unkept_nbytes == 0
        demands.append(runner.demand(None, 32))
        prefixes._features.clear()

    monkeypatch.setattr(vision_runner.VisionRunner, "_join_with", joined)
    await ask(engine, user(FIRST, QUESTION))
    assert demands[0] == demands[1] > 0


class Slow:
    """Has each stretch of encoders seem to have taken so many seconds."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        stretch = ImageEncoder.stretch

        def slow(encoder: ImageEncoder, encoding: Encoding, most: float) -> None:
            stretch(encoder, encoding, most)
            encoder._rests_until = time.monotonic() + seconds * ASIDE
            self.rested.set()

        self.rested = threading.Event()
        patch.setattr(ImageEncoder, "stretch", slow)


async def test_an_image_that_rests_for_other_engines_is_given_up_at_once(lanes, monkeypatch):
    monkeypatch.setattr(vision_runner, "STRETCH", 0.0)
    async with running(lanes) as engine:
        slow = Slow(monkeypatch, 1000.0)
        lanes.turns.begin()  # another engine that is at work all the time
        try:
            async with asyncio.timeout(10), engine.generate(request(engine, user(FIRST, QUESTION))) as outputs:
                assert await asyncio.to_thread(slow.rested.wait, 10)
                # its own rows go on, too
                assert await ask(engine, user("Some text."))
                assert engine.cancel(outputs.request.id)
                assert [output.cancelled async for output in outputs] == [True]
        finally:
            lanes.turns.end()


async def test_under_a_lock_of_all_steps_an_image_rests_for_nobody(lanes, monkeypatch):
    monkeypatch.setattr(vision_runner, "STRETCH", 0.0)
    async with running(lanes, step_lock=threading.Lock()) as engine:
        wanted = await ask(engine, user("Some text."))
        Slow(monkeypatch, 1000.0)
        lanes.turns.begin()
        try:
            async with asyncio.timeout(20):
                assert await ask(engine, user(FIRST, SECOND, QUESTION)) != wanted
        finally:
            lanes.turns.end()


async def test_no_stretch_is_longer_than_others_may_be_stalled(lanes, monkeypatch):
    asked, go_on = [], Encoding.go_on

    def noted(encoding: Encoding, seconds: float, *arguments, **options):
        asked.append(seconds)
        return go_on(encoding, seconds, *arguments, **options)

    async with running(lanes, max_stall=0.02) as engine:
        monkeypatch.setattr(Encoding, "go_on", noted)
        assert tokens_in(await outputs_of(engine, request(engine, user(FIRST, QUESTION))))
    assert set(asked) == {0.02}
