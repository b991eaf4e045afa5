"""Folders of vision models that are not what they say: why they are not loaded, and which of their words count."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from engine_harness import engine_on, lane_pool
from tiny_vision import png, tiny_vision_model
from vision_harness import ask, user

from mlxd.engines.errors import LoadError, LoadFailure


@pytest.fixture
async def lanes():
    async with lane_pool() as pool:
        yield pool


@pytest.fixture
def changed(tmp_path) -> Callable[..., Path]:
    """A model's folder with other values in a file: in config.json at its top, or that of `file`."""

    def copy(values: Mapping[str, Any], file: str = "config.json", family: str = "qwen3_vl") -> Path:
        path = tmp_path / "changed"
        shutil.copytree(tiny_vision_model(family), path)
        before = json.loads((path / file).read_text()) if (path / file).exists() else {}
        (path / file).write_text(json.dumps({**before, **values}))
        return path

    return copy


async def failure_of(path: Path, lanes) -> LoadError:
    with pytest.raises(LoadError) as failure:
        async with engine_on(path, lanes, vision=True):
            pass
    return failure.value


@pytest.mark.parametrize(
    ("values", "reason", "said"),
    [
        ({"model_type": "nonesuch_vl"}, LoadFailure.UNSUPPORTED, "nonesuch_vl not supported"),
        ({"architectures": [["Qwen3"]]}, LoadFailure.BAD_FILES, "unhashable"),
        ({"vision_config": [1]}, LoadFailure.BAD_FILES, "changed: "),
        ({"image_token_id": 999_999}, LoadFailure.UNSUPPORTED, "999999 stands for an image, but the tokenizer has no"),
        ({"image_token_id": -200}, LoadFailure.UNSUPPORTED, "-200 stands for an image, but the tokenizer has no"),
    ],
    ids=["architecture", "architectures", "vision", "beyond", "negative"],
)
async def test_a_config_that_lies_is_told_from_a_bug(lanes, changed, values, reason, said):
    failure = await failure_of(changed(values), lanes)
    assert (failure.reason, said in str(failure)) == (reason, True)


async def test_a_model_that_only_looks_is_not_loaded(lanes, monkeypatch):
    from mlxd.engines import vision_loader

    load = vision_loader.load_vision

    def without_language(*arguments: Any, **options: Any) -> Any:
        model = load(*arguments, **options)
        del model.language_model
        return model

    monkeypatch.setattr(vision_loader, "load_vision", without_language)
    failure = await failure_of(tiny_vision_model("qwen3_vl"), lanes)
    assert failure.reason is LoadFailure.UNSUPPORTED
    assert "mlx-vlm's qwen3_vl is no model that answers in text about images" in str(failure)


async def test_without_the_vision_extra_the_reason_says_how_to_get_it(lanes, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxd.engines.vision_backend", None)
    failure = await failure_of(tiny_vision_model("qwen3_vl"), lanes)
    assert failure.reason is LoadFailure.UNSUPPORTED
    assert "pip install 'mlxd[vision]'" in str(failure)


async def test_answers_end_where_the_generation_config_says(lanes, changed):
    path = changed({"eos_token_id": [5, None, "no id", 9]}, "generation_config.json")
    async with engine_on(path, lanes, vision=True) as engine:
        assert engine.tokenizer.end_tokens >= {5, 9}
        assert all(isinstance(token, int) for token in engine.tokenizer.end_tokens)


async def test_answers_end_where_the_processor_says(lanes, changed):
    path = changed({"eos_token": "<|endoftext|>"}, "tokenizer_config.json", "idefics3")
    (path / "generation_config.json").write_text('{"eos_token_id": 5}')
    async with engine_on(path, lanes, vision=True) as engine:
        ends = engine.tokenizer.end_tokens
        assert {5, *engine.tokenizer.encode("<end_of_utterance>")} <= ends


async def test_the_vocabulary_is_that_of_the_language_model(lanes, changed):
    path = changed({"vocab_size": 10})
    async with engine_on(path, lanes, vision=True) as engine:
        assert engine.info.vocab_size > 2000
        assert await ask(engine, user(png("first", (90, 90)), "What is here?"))
