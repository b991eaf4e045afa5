"""Rows of vision models that cannot be batched, step by step: what they hold, what they cost, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from serial_vision import CHATS, FAMILIES, SAMPLINGS, Lane, loaded, none_batched
from structlog.testing import capture_logs
from tiny_vision import tiny_vision_model
from vision_harness import EXACT

from mlxd.engines import guide_processor, serial_vision_runner
from mlxd.engines.backend import NewRow
from mlxd.engines.errors import GuideError, LoadError, LoadFailure
from mlxd.engines.prompt_price import RowNeed
from mlxd.engines.serial_vision_inputs import flat_inputs, model_inputs
from mlxd.engines.serial_vision_row import serial_row
from mlxd.engines.types import Request


@pytest.fixture(scope="module", params=FAMILIES)
def lane(request: pytest.FixtureRequest) -> Iterator[Lane]:
    family: str = request.param
    stack = ExitStack()
    with ThreadPoolExecutor(1) as thread, none_batched():
        yield Lane(family, thread.submit(loaded, stack, tiny_vision_model(family, **FAMILIES[family])).result(), thread)
        thread.submit(stack.close).result()


@pytest.mark.parametrize("kind", ["penalties", "guided"])
def test_a_row_that_lost_its_place_goes_on_as_if_it_had_not(lane, kind):
    def work() -> None:
        asked = lane.request(*CHATS["one image"], sampling=SAMPLINGS[kind])
        whole = lane.answer(asked)
        first = lane.insert(asked)
        begun = lane.tokens(first, most=3)
        lane.runner.remove([first])
        other = lane.insert(lane.request(*CHATS["text"]))
        again = lane.insert(asked, begun)
        lane.tokens(other)
        assert [*begun, *lane.tokens(again)] == whole

    lane.run(work)


def test_a_row_that_is_removed_at_any_point_leaves_nothing(lane, monkeypatch):
    # every block of the encoder is a step
    monkeypatch.setattr(serial_vision_runner, "STRETCH", 0.0)

    def removed_after(steps: int, asked: Request) -> str:
        mx.clear_cache()
        before = mx.get_active_memory()
        uid = lane.insert(asked)
        for _ in range(steps):
            assert not lane.runner.step().failed
        phase = lane.phase(uid)
        lane.runner.remove([uid])
        lane.runner.settle()
        assert (lane.runner.kv_bytes, lane.runner.demand(None, 16)) == (0, 0)
        assert lane.keeps_nothing
        assert mx.get_active_memory() <= before + 1024
        return phase

    def work() -> None:
        other, long = lane.request(*CHATS["one image"]), lane.request(*CHATS["a long text with an image"])
        expected = lane.answer(other)
        phases = ["waiting"]
        while phases[-1] != "decoding":
            phases.append(removed_after(len(phases), long))
        assert {"encoding", "embedded"} <= set(phases)
        assert ("in the prompt" in phases) == (lane.family in ("mllama", "qwen3_5"))
        assert lane.answer(other) == expected

    lane.run(work)


def test_an_image_that_the_model_cannot_take_is_that_requests_failure_alone(lane):
    def work() -> None:
        asked = lane.request(*CHATS["one image"])
        expected = lane.answer(asked)
        before = mx.get_active_memory()
        inputs = dict(asked.images.inputs)
        inputs["pixel_values"] = inputs["pixel_values"][..., :3]
        first = lane.insert(replace(asked, images=replace(asked.images, inputs=inputs)))
        second = lane.insert(asked)
        while not (step := lane.runner.step()).failed:
            assert not step.tokens
        assert [uid for uid, _ in step.failed] == [first]
        assert mx.get_active_memory() <= before + 1024
        assert lane.tokens(second) == expected

    lane.run(work)


def test_a_guide_that_fails_in_the_middle_ends_its_own_request_alone(lane, monkeypatch):
    monkeypatch.setattr(guide_processor, "FREE_SECONDS", -1.0)
    monkeypatch.setattr(guide_processor, "SECONDS_PER_TOKEN", 0.2)

    def work() -> None:
        asked = lane.request(*CHATS["text"])
        first = lane.insert(replace(asked, sampling=SAMPLINGS["guided"]))
        second = lane.insert(asked)
        while not (step := lane.runner.step()).failed:
            pass
        ((uid, error),) = step.failed
        assert uid == first
        assert isinstance(error, GuideError)
        assert len(lane.tokens(second)) == EXACT.max_tokens

    lane.run(work)


def test_tokens_of_images_beyond_the_logits_are_read_as_others_by_penalties(lane):
    def work() -> None:
        asked = lane.request(*CHATS["one image"], sampling=SAMPLINGS["penalties"])
        image = asked.images.token
        row = serial_row(1, NewRow(asked, asked.prompt, 6, 16), lane.runner.tokenizer, image)
        context = row.context.tolist()
        assert len(context) == len(asked.prompt)
        assert set(context) == {token for token in asked.prompt if token < image}

    lane.run(work)


def test_a_model_that_makes_more_of_an_image_than_it_has_tokens_fails_and_does_not_forget_the_rest(lane, monkeypatch):
    def work() -> None:
        model = type(lane.runner._vision)
        embed = model.get_input_embeddings

        def longer(*arguments, **options):
            made = embed(*arguments, **options)
            made.inputs_embeds = mx.concatenate([made.inputs_embeds, made.inputs_embeds[:, -1:]], axis=1)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(model, "get_input_embeddings", longer)
            lane.insert(lane.request(*CHATS["one image"]))
            while not (step := lane.runner.step()).failed:
                assert not step.tokens
        assert "more places than there are tokens" in str(step.failed[0][1])

    lane.run(work)


def test_rows_that_wait_are_priced_one_by_one(lane):
    def work() -> None:
        runner, asked = lane.runner, lane.request(*CHATS["one image"])
        rows = [lane.insert(asked)]
        alone = runner.demand(None, 16)
        rows += [lane.insert(asked) for _ in range(5)]
        assert runner.demand(None, 16) == alone > 0
        assert runner.demand(RowNeed(4, 8), 16) == alone
        assert runner.demand(RowNeed(1500, 8), 16) > alone
        runner.remove(rows)

    lane.run(work)


def test_a_prompt_that_is_read_as_a_whole_is_priced_as_a_whole(lane):
    def work() -> None:
        prices = {lane.runner.demand(RowNeed(1500, 8), chunk) for chunk in (16, 2048)}
        assert (len(prices) == 1) == (lane.family == "paligemma")

    lane.run(work)


def test_what_an_image_leaves_beside_the_caches_is_in_the_price(lane):
    def work() -> None:
        uid = lane.insert(lane.request(*CHATS["one image"]))
        demand = lane.runner.demand(None, 16)
        lane.tokens(uid, most=2)
        beside = lane.runner._rows[uid].sequence.beside_nbytes
        # the encoder's output for four tiles of 17 places, 128 numbers each
        assert beside == (4 * 17 * 128 * 4 if lane.family == "mllama" else 0)
        assert demand > lane.runner.kv_bytes > beside
        lane.runner.remove([uid])

    lane.run(work)


def load_alone(family: str) -> None:
    """Load a family's model on a lane of its own, and let it go."""
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        stack.callback(lambda inner: thread.submit(inner.close).result(), inner := ExitStack())
        thread.submit(loaded, inner, tiny_vision_model(family)).result()


def test_a_model_that_takes_turns_says_so():
    with capture_logs() as logs:
        load_alone("mllama")
    (event,) = [each for each in logs if each["event"] == "engine.not_batched"]
    assert event["family"] == "mllama"
    assert event["model"].startswith("mllama")


def test_a_model_whose_images_cannot_be_prepared_is_not_loaded():
    with pytest.raises(LoadError, match="image processor refused") as failure:
        load_alone("llava")
    assert failure.value.reason is LoadFailure.UNSUPPORTED


def test_lists_and_plain_values_of_a_processor_reach_the_model_as_they_were():
    pixels = [mx.ones((3, 2)), mx.zeros((3, 4), dtype=mx.bfloat16)]
    made = {"pixel_values": pixels, "sizes": [(2, 3), (4, 5)], "kind": "tiled", "labels": None, "grid": mx.array([1])}
    flat = flat_inputs(made)
    assert all(isinstance(array, np.ndarray) for array in flat.values())
    given = model_inputs(flat)
    assert given.keys() == {"pixel_values", "sizes", "kind", "grid"}
    assert [array.shape for array in given["pixel_values"]] == [(3, 2), (3, 4)]
    assert (given["sizes"], given["kind"]) == ([[2, 3], [4, 5]], "tiled")
    assert isinstance(given["grid"], mx.array)
