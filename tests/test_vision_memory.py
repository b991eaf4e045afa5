"""What vision models take: towers are part of the weights, and encoding of a prompt's price."""

import json
import shutil

import numpy as np
import pytest
from engine_harness import engine_on, lane_pool
from hypothesis import given
from hypothesis import strategies as st
from tiny_vision import ARCHITECTURES, png, tiny_vision_model
from vision_harness import ask, outputs_of, request, user

from mlxd.engines.errors import PrefillMemoryExceeded
from mlxd.engines.image_price import ImagePrice
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.prompt_images import PreparedImage
from mlxd.engines.transients import Shape, Transients
from mlxd.engines.vision_encoder import ImageEncoder
from mlxd.memory.estimates import inspect_folder

MB = 2**20
QUESTION = "What is here?"


@pytest.fixture
async def lanes():
    async with lane_pool() as pool:
        yield pool


@pytest.fixture(scope="session")
def sharp_eyed(tmp_path_factory):
    """A model whose images have up to 1,024 patches, which all attend to each other."""
    path = tmp_path_factory.mktemp("sharp") / "sharp-eyed"
    shutil.copytree(tiny_vision_model("qwen2_vl", vision_config={"num_heads": 8}), path)
    settings = path / "preprocessor_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_pixels": 448 * 448}))
    return path


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_the_estimate_counts_every_weight_that_is_loaded(lanes, architecture):
    path = tiny_vision_model(architecture)
    async with engine_on(path, lanes, vision=True) as engine:
        assert inspect_folder(path).weight_bytes == engine.info.weight_bytes


async def test_images_of_all_sizes_take_no_more_than_they_are_priced_at_and_not_far_less(
    lanes, sharp_eyed, monkeypatch
):
    seen = []
    done = ImageEncoder._done

    def note(encoder, encoding):
        seen.append((encoder.price.encoding(encoding.image), encoding.height))
        done(encoder, encoding)

    async with engine_on(sharp_eyed, lanes, vision=True) as engine:
        monkeypatch.setattr(ImageEncoder, "_done", note)
        for side in (56, 140, 224, 336, 448):
            await ask(engine, user(png(f"noise of {side}", (side, side)), QUESTION))
    assert len(seen) == 5
    assert [(priced, took) for priced, took in seen if not took <= priced <= 4 * took + 2 * MB] == []


async def test_an_image_that_cannot_be_encoded_in_the_memory_there_is_is_refused_and_text_is_served(lanes, sharp_eyed):
    room = 24 * MB
    share = MemoryShare(lambda: room, limit=lambda: "memory.ceiling")
    async with engine_on(sharp_eyed, lanes, vision=True, memory=share.stake("sharp-eyed")) as engine:
        big, small = user(png("noise", (448, 448)), QUESTION), user(png("red", (56, 56)), QUESTION)
        with pytest.raises(PrefillMemoryExceeded) as refused:
            await outputs_of(engine, request(engine, big))
        assert refused.value.estimated_bytes > refused.value.limit_bytes
        answers = [await ask(engine, one) for one in (small, user("No image."))]
        room = 4 * 1024 * MB
        assert await ask(engine, big) not in answers
    assert share.spare() == room


async def test_features_are_promised_until_their_prompt_is_processed(lanes, sharp_eyed):
    async with engine_on(sharp_eyed, lanes, vision=True) as engine:
        asked = request(engine, user(png("noise", (448, 448)), QUESTION))
        price = engine._run.price.images
        (image,) = asked.images.images
        need = price.of(asked.images)
        assert need.kept == image.tokens * 128 * 4
        assert need.peak >= image.nbytes
        assert price.of(asked.images, image.tokens).peak == 0


def image_of(patches: int) -> PreparedImage:
    return PreparedImage(b"digest", patches // 4, {"pixel_values": np.broadcast_to(np.float32(0), (patches, 1176))})


@given(st.integers(1024, 70_000), st.integers(0, 10**7), st.integers(0, 10**5), st.floats(0, 96))
def test_an_image_larger_than_all_before_it_is_priced_by_the_square_of_its_size_at_most(patches, fixed, each, pair):
    def took(image: PreparedImage) -> int:
        count = len(image.inputs["pixel_values"])
        return image.nbytes + fixed + count * each + int(count * count * pair)

    price = ImagePrice(14, 0, Transients(Shape(16, 2)))
    for seen in map(image_of, (16, 1024)):
        price = price.observed(seen, took(seen))
    image, largest = image_of(patches), image_of(1024)
    assert price.encoding(image) >= took(image)
    if took(image_of(1024)) > image_of(1024).nbytes:
        square = (took(largest) - largest.nbytes) * (patches / 1024) ** 2
        assert price.encoding(image) <= image.nbytes + 1.2 * square


def test_an_image_that_nobody_measured_does_not_make_others_cheaper():
    price = ImagePrice().observed(image_of(1024), image_of(1024).nbytes + 10**6)
    assert price.observed(image_of(4096), 0).encoding(image_of(8192)) >= price.encoding(image_of(8192))
    # nor does a smaller one
    assert price.observed(image_of(64), 10**9).largest == price.largest
