"""The test models themselves, run through mlx-lm."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.sample_utils import make_sampler
from tiny_models import EOS, SIZES, build_reciting_model, build_tiny_model, cache_dir

ACCENT = "é".encode()
EMOJI = "😀".encode()
PIECES = ["Hello", " wor", "ld", "\n", "\n", ACCENT[:1], ACCENT[1:], " a", " a", EMOJI[:3], EMOJI[3:], "<tool>", "!"]
RECITED = "Hello world\n\né a a😀<tool>!"


def answer(folder: Path, prompt: str | None = None, limit: int = 40, temperature: float = 0.0, user: str = "Hi"):
    model, tokenizer = mlx_lm.load(str(folder))
    if prompt is None:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": user}], add_generation_prompt=True)
    sampler = make_sampler(temp=temperature)
    return list(mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=limit, sampler=sampler))


def text(folder: Path, **options) -> str:
    return "".join(response.text for response in answer(folder, **options))


@pytest.fixture(scope="module")
def reciting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_reciting_model(tmp_path_factory.mktemp("models") / "reciting", PIECES)


def test_a_reciting_model_says_its_pieces_one_token_each_and_ends(reciting_model: Path):
    responses = answer(reciting_model)
    assert "".join(response.text for response in responses) == RECITED
    assert len({response.token for response in responses[:-1]}) == len(PIECES)
    assert responses[-1].token == EOS
    assert responses[-1].finish_reason == "stop"


@pytest.mark.parametrize("user", ["Hello world\n", "", " a a", "é😀 <|im_end|>", "<tool>!"])
def test_a_reciting_model_says_the_same_whatever_the_prompt(reciting_model: Path, user: str):
    assert text(reciting_model, user=user) == RECITED


def test_a_reciting_model_needs_no_chat_template_and_no_greedy_sampling(reciting_model: Path):
    assert text(reciting_model, prompt="print", temperature=1.5) == RECITED


def test_a_looping_reciting_model_starts_again(tmp_path: Path):
    assert text(build_reciting_model(tmp_path / "loop", ["ab", "c", "ab"], loop=True), limit=7) == "abcababcabab"


def test_a_reciting_model_without_pieces_ends_at_once(tmp_path: Path):
    assert [response.token for response in answer(build_reciting_model(tmp_path / "mute", []))] == [EOS]


@pytest.mark.parametrize("piece", ["", "<|im_end|>"])
def test_a_piece_that_cannot_be_recited_is_refused(tmp_path: Path, piece: str):
    with pytest.raises(ValueError, match="not usable as pieces"):
        build_reciting_model(tmp_path / "bad", ["a", piece])
    assert list(tmp_path.iterdir()) == []


def test_a_pieces_count_past_the_first_width_still_recites(tmp_path: Path):
    pieces = [f"{number}," for number in range(130)]
    assert text(build_reciting_model(tmp_path / "long", pieces), limit=200) == "".join(pieces)


def test_random_models_of_other_seeds_and_kinds_say_other_things(tiny_model, other_tiny_model, tmp_path: Path):
    qwen = build_tiny_model(tmp_path / "qwen", kind="qwen3")
    texts = {text(folder) for folder in (tiny_model, other_tiny_model, qwen)}
    assert len(texts) == 3
    assert "" not in texts


def test_a_random_model_does_not_end_on_its_own(micro_model: Path):
    assert answer(micro_model, limit=600)[-1].finish_reason == "length"
    assert answer(micro_model, limit=600, temperature=1.0)[-1].finish_reason == "length"


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_and_kind_is_float32_and_built_in_seconds(tmp_path: Path, size: str, kind: str):
    started = time.perf_counter()
    folder = build_tiny_model(tmp_path / size, size, kind, num_hidden_layers=1)
    assert time.perf_counter() - started < 5
    assert {array.dtype for array in mx.load(str(folder / "model.safetensors")).values()} == {mx.float32}
    mlx_lm.load(str(folder))


def test_config_overrides_shape_the_weights_and_reach_the_config(tmp_path: Path):
    folder = build_tiny_model(
        tmp_path / "m", "micro", max_position_embeddings=128, num_key_value_heads=2, tie_word_embeddings=False
    )
    config = json.loads((folder / "config.json").read_text())
    assert (config["max_position_embeddings"], config["num_key_value_heads"]) == (128, 2)
    assert len(answer(folder, limit=3)) == 3


def test_a_small_final_norm_makes_logits_nearly_equal(tmp_path: Path):
    flat = answer(build_tiny_model(tmp_path / "flat", "micro", final_norm=0.01), limit=1)[0].logprobs
    assert (mx.max(flat) - mx.min(flat)).item() < 1


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path):
    first, second = (build_tiny_model(tmp_path / name, "micro", seed=3) for name in ("first", "second"))
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()


def test_a_build_never_replaces_a_folder_and_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        build_tiny_model(tmp_path / "there", "micro")
    with pytest.raises(ValueError, match="kind"):
        build_tiny_model(tmp_path / "new", "micro", kind="gpt9")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_placed_models_are_private_copies(micro_model: Path, models_dir):
    folder = models_dir({"alpha": micro_model, "org/beta": micro_model})
    (folder / "org/beta/config.json").unlink()
    assert (folder / "alpha/config.json").exists()
    assert (micro_model / "config.json").exists()
    assert micro_model.parent == cache_dir()


def test_building_does_not_import_mlx(tmp_path: Path):
    program = (
        "import sys, tiny_models, pathlib; tiny_models.build_tiny_model(pathlib.Path(sys.argv[1]), 'micro');"
        "sys.exit(any(name.split('.')[0] in ('mlx', 'mlx_lm') for name in sys.modules))"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "m")]
    subprocess.run(arguments, check=True, cwd=Path(__file__).parent, timeout=60)
