"""The vision test models themselves, run through mlx-vlm with no network and no torch."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from mlx_vlm import generate
from mlx_vlm.prompt_utils import apply_chat_template
from mlx_vlm.utils import load_model, load_processor
from PIL import Image
from tiny_vision import (
    ARCHITECTURES,
    COLOURS,
    ORDINARY_TOKENS,
    SINGLE_IMAGE,
    UNPREPARED,
    build_tiny_vision_model,
    png,
    tiny_vision_model,
)

QUESTION = "What is here?"
MANY_IMAGES = [name for name in ARCHITECTURES if name not in SINGLE_IMAGE]


class Loaded(NamedTuple):
    model: Any
    processor: Any
    image_file: Callable[[str], str]

    def prompt(self, question: str, images: int) -> str:
        return apply_chat_template(self.processor, self.model.config, question, num_images=images)

    def answer(self, question: str, *patterns: str) -> str:
        files = [self.image_file(pattern) for pattern in patterns]
        prompt = self.prompt(question, len(files))
        result = generate(self.model, self.processor, prompt, image=files or None, max_tokens=12, temperature=0.0)
        assert result.generation_tokens == 12
        return result.text


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Loaded]]:
    """Loads a model once, while nothing can connect to anywhere."""
    images, loaded = tmp_path_factory.mktemp("images"), {}

    def image_file(pattern: str) -> str:
        file = images / f"{pattern}.png"
        file.write_bytes(png(pattern))
        return str(file)

    def refuse(*_: Any) -> None:
        raise AssertionError("a model was to be loaded without the network")

    def load(architecture: str) -> Loaded:
        if architecture not in loaded:
            folder = tiny_vision_model(architecture)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(socket.socket, "connect", refuse)
                patch.setattr(socket, "getaddrinfo", refuse)
                model, processor = load_model(folder, lazy=True), load_processor(folder, trust_remote_code=False)
            loaded[architecture] = Loaded(model, processor, image_file)
        return loaded[architecture]

    yield load
    loaded.clear()
    mx.clear_cache()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_greedy_answer_depends_on_the_image_and_the_prompt_and_on_nothing_else(load, architecture: str):
    model = load(architecture)
    asked = [(QUESTION, "red"), (QUESTION, "blue"), (QUESTION, "noise"), ("Why?", "red"), (QUESTION,), ("Why?",)]
    answers = [model.answer(*question) for question in asked]
    assert len(set(answers)) == len(asked)
    assert model.answer(QUESTION, "red") == answers[0]


@pytest.mark.parametrize("architecture", MANY_IMAGES)
def test_the_order_of_two_images_matters(load, architecture: str):
    model = load(architecture)
    answers = {model.answer(QUESTION, *images) for images in [("red", "blue"), ("blue", "red"), ("red",)]}
    assert len(answers) == 3


@pytest.mark.parametrize("architecture", SINGLE_IMAGE)
def test_some_families_take_one_image(load, architecture: str):
    with pytest.raises(ValueError, match="only use 1 image"):
        load(architecture).prompt(QUESTION, 2)


@pytest.mark.parametrize("architecture", UNPREPARED)
def test_an_unprepared_family_answers_by_what_its_processor_makes_of_an_image(load, architecture: str):
    model = load(architecture)

    def answer(*patterns: str) -> str:
        pictures = [Image.open(io.BytesIO(png(pattern))) for pattern in patterns]
        prompt = model.prompt(QUESTION, len(pictures))
        inputs = dict(model.processor(images=pictures, text=[prompt]))
        inputs["mask"] = inputs.pop("attention_mask")
        return generate(model.model, model.processor, prompt, max_tokens=12, temperature=0.0, **inputs).text

    assert len({answer("red"), answer("blue"), answer("red", "blue"), model.answer(QUESTION)}) == 4
    with pytest.raises(ValueError, match="padding"):
        model.answer(QUESTION, "red")


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *UNPREPARED])
def test_a_template_takes_text_by_itself_and_in_parts_and_shows_every_image(load, architecture: str):
    tokenizer = load(architecture).processor.tokenizer

    def render(content: Any) -> str:
        first = {"role": "user", "content": content}
        turns = [first, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    text, image = {"type": "text", "text": "Hi"}, {"type": "image"}
    plain = render("Hi")
    assert render([text]) == plain
    assert plain.index("Hi") < plain.index("Yes.") < plain.index("And?")
    lengths = [len(render([image] * count + [text])) for count in (1, 2, 3)]
    assert len(plain) < lengths[0] < lengths[1] < lengths[2]


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *UNPREPARED])
def test_a_folder_is_float32_and_reads_long_prompts_and_its_end_is_a_token_of_its_own(load, architecture: str):
    folder = tiny_vision_model(architecture)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config") or config.get("llm_config") or config
    assert text["max_position_embeddings"] >= 2048
    assert {array.dtype for array in mx.load(str(folder / "model.safetensors")).values()} == {mx.float32}
    tokenizer = load(architecture).processor.tokenizer
    assert tokenizer.eos_token_id == config["eos_token_id"]
    assert len(tokenizer) == text["vocab_size"]


def test_an_answer_holds_no_special_token(load):
    model = load("qwen2_vl")
    answers = "".join(model.answer(QUESTION, pattern) for pattern in COLOURS)
    assert max(model.processor.tokenizer(answers)["input_ids"]) < ORDINARY_TOKENS
    assert "<|" not in answers


def test_nothing_loads_torch(load):
    for architecture in (*ARCHITECTURES, *UNPREPARED):
        load(architecture)
    assert not {"torch", "torchvision"} & sys.modules.keys()


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_weights(tmp_path: Path):
    first, second, other = (build_tiny_vision_model(tmp_path / str(n), "gemma3", seed=n // 2) for n in range(3))
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, other)]
    assert weights[0] != weights[1]


def test_overrides_reach_the_config_and_shape_the_weights(tmp_path: Path):
    text = {"num_hidden_layers": 3, "sliding_window": 64}
    folder = build_tiny_vision_model(tmp_path / "m", "gemma3", template="{{ bos_token }}", text_config=text)
    config = json.loads((folder / "config.json").read_text())
    assert config["text_config"]["hidden_size"] == 128
    assert config["text_config"]["sliding_window"] == 64
    assert (folder / "chat_template.jinja").read_text() == "{{ bos_token }}"
    assert len(load_model(folder, lazy=True).layers) == 3


def test_an_unknown_architecture_is_refused_and_leaves_nothing(tmp_path: Path):
    with pytest.raises(ValueError, match="one of qwen2_vl"):
        build_tiny_vision_model(tmp_path / "new", "gpt9")
    assert list(tmp_path.iterdir()) == []


def test_every_pattern_is_another_image_of_the_size_asked_for():
    patterns = [*COLOURS, "stripes", "gradient", "noise", "other noise"]
    files = {png(pattern, (30, 20)) for pattern in patterns}
    assert len(files) == len(patterns)
    assert {Image.open(io.BytesIO(file)).size for file in files} == {(30, 20)}
