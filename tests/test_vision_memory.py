"""What vision models take: towers are part of the weights, and encoding of a prompt's price."""

import json
import shutil

import pytest
from engine_harness import engine_on, lane_pool
from tiny_vision import ARCHITECTURES, png, tiny_vision_model
from vision_harness import ask, outputs_of, request, user

from mlxd.engines.errors import PrefillMemoryExceeded
from mlxd.engines.memory_share import MemoryShare
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
        price = engine._engine_loop.price.images
        (image,) = asked.images.images
        need = price.of(asked.images)
        assert need.kept == image.tokens * 128 * 4
        assert need.peak >= image.nbytes
        assert price.of(asked.images, image.tokens).peak == 0
