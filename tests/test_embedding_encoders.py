"""The numbers: encoders against numpy in double precision, decoders against mlx-lm's body, facts of a real model."""

import json
import shutil

import numpy as np
import pytest
import pytest_asyncio
from embedding_harness import ask, embed, embedder, inputs, matrix, tokenizer_of
from engine_harness import lane_pool
from numpy_encoder import POOLED, NumpyEncoder, unit
from tiny_encoders import add_modules, build_encoder, change_config, rename_weights
from tiny_models import build_tiny_model

from mlxd.engines.embedding_types import EmbeddingRequest, EncoderHead
from mlxd.engines.encoder_modules import Pooling, SentenceModules, read_modules

TEXTS = ["import os", "def hello(name): return name", "a", "class of the " * 12, "x = 1 # " * 5]


# one event loop, and engines on the same lanes, for all of them
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lanes():
    async with lane_pool() as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def paraphraser(minilm, lanes):
    async with embedder(minilm, lanes) as engine:
        yield engine


def cosines(left, right):
    return np.sum(left * right, axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


async def test_minilm_gives_what_numpy_gives(minilm, paraphraser):
    texts = ["A man is eating food.", "東京 is big", "naïve café", "one two " * 12, "?"]
    model = NumpyEncoder(minilm)
    got = await embed(paraphraser, texts)
    wanted = np.array([unit(model.states(each.tokens).mean(axis=0)) for each in inputs(paraphraser, texts)])
    assert got.shape == (5, 384)
    assert np.abs(got - wanted).max() < 1e-5
    assert cosines(got, wanted).min() > 0.9999


async def test_minilm_knows_a_paraphrase_from_another_subject(paraphraser):
    pairs = [
        ("A man is eating food.", "A man eats something.", "The girl plays the violin."),
        ("How do I reset my password?", "I forgot my login and need a new one.", "The recipe needs two eggs."),
    ]
    assert paraphraser.info.encoder.max_length == 256
    for text, paraphrase, other in pairs:
        a, b, c = await embed(paraphraser, [text, paraphrase, other])
        assert a @ b > a @ c + 0.3
        assert np.linalg.norm(a) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
async def test_each_way_of_pooling_gives_what_numpy_gives(tmp_path, lanes, kind):
    # all of them in one model, whose vectors come one behind the other in the fixed order
    folder = build_encoder(tmp_path / "m", kind, pooling=dict.fromkeys(POOLED, True), unit=False)
    model = NumpyEncoder(folder)
    async with embedder(folder, lanes) as engine:
        got = await embed(engine, TEXTS)
        states = [model.states(each.tokens) for each in inputs(engine, TEXTS)]
        assert not engine.info.encoder.unit
    for (mode, pooled), vectors in zip(POOLED.items(), np.split(got, len(POOLED), axis=1), strict=True):
        assert np.abs(vectors - np.array([pooled(each) for each in states])).max() < 2e-5, mode


async def test_two_ways_of_pooling_make_one_longer_vector_in_the_fixed_order(tmp_path, lanes):
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    folder = build_encoder(tmp_path / "m", pooling=pooling)
    model = NumpyEncoder(folder)
    async with embedder(folder, lanes) as engine:
        [got] = await embed(engine, TEXTS[:1])
        states = model.states(inputs(engine, TEXTS[:1])[0].tokens)
    assert got == pytest.approx(unit(np.concatenate([states[0], states.mean(axis=0)])), abs=1e-5)


async def test_pooling_is_read_in_its_newer_form_too(tmp_path):
    old = build_encoder(tmp_path / "old", pooling={"pooling_mode_cls_token": True})
    new = build_encoder(tmp_path / "new", pooling={"pooling_mode": "cls", "include_prompt": True})
    assert read_modules(old, None) == read_modules(new, None)
    assert read_modules(old, Pooling.MEAN) == read_modules(new, Pooling.MEAN)
    assert read_modules(new, Pooling.MEAN).pooling == (Pooling.CLS,)


async def test_dense_layers_come_behind_the_pooling(tmp_path, lanes):
    from safetensors.numpy import load_file

    folder = build_encoder(tmp_path / "m", dense=[(48, "Tanh"), (32, "Identity")])
    model = NumpyEncoder(folder)
    async with embedder(folder, lanes) as engine:
        got = await embed(engine, TEXTS)
        wanted = []
        for each in inputs(engine, TEXTS):
            x = model.states(each.tokens).mean(axis=0)
            for place, activation in (("2_Dense", np.tanh), ("3_Dense", lambda x: x)):
                layer = load_file(folder / place / "model.safetensors")
                x = activation(layer["linear.weight"] @ x + layer["linear.bias"])
            wanted.append(unit(x))
        assert engine.info.encoder.dimensions == 32
    assert np.abs(got - np.array(wanted)).max() < 1e-5


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
async def test_a_cross_encoder_scores_pairs_as_numpy_does(tmp_path, lanes, kind):
    folder = build_encoder(tmp_path / "m", kind, scores=True)
    model = NumpyEncoder(folder)
    async with embedder(folder, lanes) as engine:
        info = engine.info.encoder
        pairs = tuple(tokenizer_of(engine).pairs("import os", TEXTS, truncate=False))
        got = matrix(await ask(engine, EmbeddingRequest("r", pairs)))
    assert (info.head, info.dimensions, got.shape) == (EncoderHead.SCORES, 1, (5, 1))
    assert got[:, 0] == pytest.approx([model.score(each.tokens, each.second) for each in pairs], abs=2e-5)
    assert all(bool(each.second) is (kind == "bert") for each in pairs)


async def test_names_with_the_familys_prefix_and_heads_of_the_training_are_the_same_model(tmp_path, lanes):
    plain = build_encoder(tmp_path / "plain")
    named = build_encoder(tmp_path / "named", prefix="bert.", architectures=["BertForMaskedLM"])
    rename_weights(named, lambda name: "cls.predictions.bias" if name == "bert.pooler.dense.bias" else name)
    async with embedder(plain, lanes) as one, embedder(named, lanes) as other:
        assert (await embed(one, TEXTS) == await embed(other, TEXTS)).all()


async def test_a_decoder_gives_the_last_tokens_state_of_mlx_lms_body(tmp_path, lanes):
    import mlx.core as mx
    from mlx_lm.utils import load_model

    folder = build_tiny_model(tmp_path / "m", size="micro", kind="qwen3")
    plain, _ = load_model(folder)
    add_modules(folder, {"pooling_mode_lasttoken": True})
    bare = tmp_path / "bare"  # as those who trained the body alone save it
    shutil.copytree(folder, bare)
    rename_weights(bare, lambda name: name.removeprefix("model."))
    for path in (folder, bare):
        async with embedder(path, lanes) as engine:
            got = await embed(engine, TEXTS)
            states = [np.array(plain.model(mx.array([list(each.tokens)])))[0, -1] for each in inputs(engine, TEXTS)]
        assert np.abs(got - np.array([unit(state) for state in states])).max() < 1e-5


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
async def test_weights_of_half_the_bits_point_where_the_whole_ones_do(tmp_path, lanes, kind):
    import mlx.core as mx

    whole = build_encoder(tmp_path / "whole", dense=[(48, "Tanh")])
    half = tmp_path / "half"
    shutil.copytree(whole, half)
    weights = mx.load(str(whole / "model.safetensors"))
    halves = {name: weight.astype(getattr(mx, kind)) for name, weight in weights.items()}
    mx.save_safetensors(str(half / "model.safetensors"), halves)
    async with embedder(whole, lanes) as one, embedder(half, lanes) as other:
        wanted, got = await embed(one, TEXTS[:3]), await embed(other, TEXTS[:3])
    assert cosines(wanted, got).min() > 0.999
    assert np.linalg.norm(got, axis=1) == pytest.approx(1, abs=1e-6)  # what is behind the model is in float32


async def test_a_vector_of_nothing_stays_one(tmp_path):
    import mlx.core as mx

    from mlxd.engines.sentence_head import SentenceHead

    head = SentenceHead(SentenceModules((Pooling.MEAN, Pooling.MAX), unit=True), 4, tmp_path)
    assert np.array(head(mx.zeros((1, 3, 4)), mx.array([2]))).tolist() == [[0.0] * 8]


async def test_a_quantized_folder_points_where_the_whole_one_does(tmp_path, lanes):
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten

    from mlxd.engines.encoder_bert import BertArgs, BertEncoder

    whole = build_encoder(tmp_path / "whole")
    small = tmp_path / "small"
    shutil.copytree(whole, small)
    model = BertEncoder(BertArgs.from_dict(json.loads((whole / "config.json").read_text())))
    model.load_weights(list(model.sanitize(mx.load(str(whole / "model.safetensors"))).items()))
    nn.quantize(model, group_size=32, bits=8)
    mx.save_safetensors(str(small / "model.safetensors"), dict(tree_flatten(model.parameters())))
    change_config(small, quantization={"group_size": 32, "bits": 8})
    async with embedder(whole, lanes) as one, embedder(small, lanes) as other:
        assert other.info.weight_bytes < one.info.weight_bytes / 2
        assert cosines(await embed(one, TEXTS), await embed(other, TEXTS)).min() > 0.999


async def test_tokens_are_those_of_the_tokenizers_file_without_its_padding_and_truncation(minilm, paraphraser):
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    assert plain.padding is not None
    plain.no_padding()
    plain.no_truncation()
    texts = ["Héllo, wörld! 東京 don't [MASK]", "word " * 200, ""]
    got = inputs(paraphraser, texts)
    [pair] = tokenizer_of(paraphraser).pairs("one two", ["three"], truncate=False)
    assert [list(each.tokens) for each in got] == [each.ids for each in plain.encode_batch(texts)]
    wanted = plain.encode("one two", "three")
    assert (list(pair.tokens), pair.second) == (wanted.ids, sum(wanted.type_ids))
