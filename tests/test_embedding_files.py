"""What a folder says is served or refused with a reason, and never passed over."""

import json
import os
import shutil

import numpy as np
import pytest
import pytest_asyncio
from embedding_harness import embed, embedder, inputs, tokenizer_of
from engine_harness import lane_pool
from safetensors.numpy import load_file, save_file
from tiny_encoders import add_modules, build_encoder, change_config, rename_weights
from tiny_models import build_tiny_model, cached

from mlxd.engines.crowd import Crowd
from mlxd.engines.embedding_engine import EmbeddingEngine
from mlxd.engines.errors import EngineClosed, InputTooLong, InvalidRequest, LoadError
from mlxd.engines.types import EngineConfig
from mlxd.memory.estimates import inspect_folder

# one event loop, and engines on the same lanes, for all of them
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lanes():
    async with lane_pool() as pool:
        yield pool


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(cached("encoder", build_encoder), tmp_path / "m")
    return tmp_path / "m"


def modules(folder, *listed):
    entries = [{"path": path, "type": kind} for path, kind in listed]
    (folder / "modules.json").write_text(json.dumps(entries))


def known(*more):
    st = "sentence_transformers.models."
    return [("", f"{st}Transformer"), ("1_Pooling", f"{st}Pooling"), *more]


def pipe(folder):
    (folder / "1_Pooling" / "config.json").unlink()
    os.mkfifo(folder / "1_Pooling" / "config.json")


def nan_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.weight"] = np.full(64, np.nan, np.float32)
    save_file(weights, folder / "model.safetensors")


def cut(folder):
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"] = weights["encoder.layer.1.output.dense.weight"][:, :-1]
    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, folder / "model.safetensors")


def dense(folder, **config):
    (folder / "2_Dense").mkdir()
    layer = {"in_features": 64, "out_features": 8, "bias": False, **config}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(layer))
    modules(folder, *known(("2_Dense", "sentence_transformers.models.Dense")))


def dense_of_other_shape(folder):
    dense(folder)
    save_file({"linear.weight": np.zeros((8, 63), np.float32)}, folder / "2_Dense" / "model.safetensors")


def pooling(**config):
    return lambda folder: (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


def setting(**values):
    return lambda folder: change_config(folder, **values)


def listing(*listed):
    return lambda folder: modules(folder, *listed)


def text(file, content):
    return lambda folder: (folder / file).write_text(content)


BAD = {
    "no pooling config": lambda folder: (folder / "1_Pooling" / "config.json").unlink(),
    "a pooling config that is a pipe": pipe,
    "a pooling config that is a list": text("1_Pooling/config.json", "[]"),
    "a pooling config that is cut off": text("1_Pooling/config.json", '{"pooling_mode_me'),
    "a pooling config of 5 MB": text("1_Pooling/config.json", " " * 5_000_000),
    "a pooling config without a mode": pooling(word_embedding_dimension=64),
    "a pooling mode that is a number": pooling(pooling_mode=3),
    "pooling of other states": pooling(word_embedding_dimension=32, pooling_mode_cls_token=True),
    "modules that are no list": text("modules.json", "{}"),
    "modules that are deep": text("modules.json", "[" * 100_000),
    "a module without a type": text("modules.json", '[{"path": ""}]'),
    "a module outside of the folder": listing(known()[0], ("../m/1_Pooling", known()[1][1])),
    "a module at an absolute path": listing(known()[0], ("/etc", known()[1][1])),
    "prompts that are a list": text("config_sentence_transformers.json", '{"prompts": ["a"]}'),
    "a default prompt that is not there": text("config_sentence_transformers.json", '{"default_prompt_name": "q"}'),
    "a dense layer without weights": dense,
    "a dense layer of another size": lambda folder: dense(folder, in_features=63),
    "dense weights of another shape": dense_of_other_shape,
    "weights of another shape": cut,
    "a weight that is missing": lambda folder: rename_weights(
        folder, lambda name: None if name == "encoder.layer.0.output.dense.bias" else name
    ),
    "a weight too many": lambda folder: rename_weights(folder, lambda name: name.replace("pooler", "router")),
    "weights that are not numbers": nan_weights,
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "heads that do not divide": setting(num_attention_heads=5),
    "layers beyond counting": setting(num_hidden_layers=10**9),
    "a size that is text": setting(hidden_size="64"),
    "no size": setting(hidden_size=None),
    "an index over all words": setting(vocab_size=10**12),
    "eps that is text": setting(layer_norm_eps="small"),
}
UNSUPPORTED = {
    "another architecture": setting(model_type="modernbert"),
    "code of its own": setting(auto_map={"AutoModel": "modeling.NewModel"}),
    "relative positions": setting(position_embedding_type="relative_key"),
    "an unknown activation": setting(hidden_act="gelu_fast_and_loose"),
    "a decoder": setting(is_decoder=True),
    "a classifier of two classes": setting(architectures=["BertForSequenceClassification"]),
    "a head for questions": setting(architectures=["BertForQuestionAnswering"]),
    "an unknown pooling mode": pooling(pooling_mode_median_tokens=True),
    "an unknown pooling mode in the newer form": pooling(pooling_mode=["cls", "median"]),
    "pooling without prompts": lambda folder: [
        pooling(pooling_mode_mean_tokens=True, include_prompt=False)(folder),
        text("config_sentence_transformers.json", '{"prompts": {"query": "q: "}}')(folder),
    ],
    "an unknown module": listing(*known(("2_Lstm", "sentence_transformers.models.LSTM"))),
    "a module of another library": listing(*known(("2_Dense", "pylate.models.Dense"))),
    "no pooling module": listing(known()[0]),
    "a module behind the normalisation": listing(
        *known(("", "sentence_transformers.models.Normalize"), ("2", "sentence_transformers.models.Dense"))
    ),
    "a transformer in a folder of its own": listing(("0_Transformer", known()[0][1]), known()[1]),
    "an unknown activation behind the pooling": lambda folder: [
        dense(folder, activation_function="torch.nn.Softplus"),
        save_file({"linear.weight": np.zeros((8, 64), np.float32)}, folder / "2_Dense" / "model.safetensors"),
    ],
}


def refused(folder, **config):
    """The error of a load, on this thread: what an engine does after a failed one takes longer than the load."""
    from mlxd.engines.embedding_runner import EmbeddingRunner
    from mlxd.engines.encoder_loader import load_encoder
    from mlxd.engines.peak_meter import PeakMeter

    wanted, crowd = EngineConfig("m", folder, 512, **config), Crowd()
    with pytest.raises(LoadError) as caught, crowd.entered():
        EmbeddingRunner(load_encoder(wanted, lambda _: None, lambda: False), wanted, PeakMeter(crowd))
    return caught.value


async def test_a_folder_that_is_not_whole_is_bad_files(folder, tmp_path):
    for number, (name, spoil) in enumerate(BAD.items()):
        spoiled = tmp_path / f"bad{number}"
        shutil.copytree(folder, spoiled)
        spoil(spoiled)
        error = refused(spoiled)
        assert error.reason == "bad_files", (name, error)
        assert len(str(error)) < 1000, name


async def test_what_would_make_other_vectors_and_is_not_done_here_is_unsupported(folder, tmp_path):
    for number, (name, spoil) in enumerate(UNSUPPORTED.items()):
        spoiled = tmp_path / f"other{number}"
        shutil.copytree(folder, spoiled)
        spoil(spoiled)
        error = refused(spoiled)
        assert error.reason == "unsupported", (name, error)


async def test_decoders_that_look_ahead_are_unsupported(tmp_path):
    decoder = build_tiny_model(tmp_path / "m", size="micro", kind="qwen3")
    add_modules(decoder, {"pooling_mode_lasttoken": True})
    for number, change in enumerate(
        (
            {"is_causal": False},
            {"use_bidirectional_attention": True},
            {"architectures": ["Qwen3ForSequenceClassification"]},
        )
    ):
        spoiled = tmp_path / str(number)
        shutil.copytree(decoder, spoiled)
        change_config(spoiled, num_labels=1, **change)
        assert refused(spoiled).reason == "unsupported"


async def test_an_adapter_is_not_passed_over(folder):
    assert refused(folder, adapter=folder).reason == "unsupported"


async def test_after_a_failed_load_the_lane_serves_the_next_model(folder, lanes):
    change_config(folder, hidden_act="none")
    with pytest.raises(LoadError):
        await EmbeddingEngine(EngineConfig("m", folder, 512), lanes).load()
    change_config(folder, hidden_act="gelu")
    async with embedder(folder, lanes) as engine:
        assert (await embed(engine, ["a"])).shape == (1, 64)


async def test_without_a_list_of_modules_tokens_are_averaged_to_length_one(folder, lanes):
    async with embedder(folder, lanes) as engine:
        listed = await embed(engine, ["import os"])
    (folder / "modules.json").unlink()
    async with embedder(folder, lanes) as engine:
        assert (await embed(engine, ["import os"]) == listed).all()


async def test_the_shortest_of_all_lengths_holds(folder, lanes):
    async with embedder(folder, lanes) as engine:
        assert engine.info.encoder.max_length == 128  # of its positions and its tokenizer
    async with embedder(folder, lanes, context_length=50) as engine:
        assert engine.info.encoder.max_length == 50
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    async with embedder(folder, lanes) as engine:
        assert engine.info.encoder.max_length == 20
        [cut] = inputs(engine, ["x " * 100])
        assert len(cut) == 20
        assert cut.tokens[-1] == 3  # the end is kept
        with pytest.raises(InputTooLong) as caught:
            tokenizer_of(engine).inputs(["x", "x " * 100], truncate=False)
        assert (caught.value.number, caught.value.prompt_tokens, caught.value.context_length) == (1, 102, 20)


async def test_what_is_known_of_a_length_before_a_load_is_what_the_load_finds(folder, lanes, tmp_path):
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    roberta = build_encoder(tmp_path / "roberta", "xlm-roberta", max_position_embeddings=100)
    for path, length in ((folder, 20), (roberta, 98)):
        assert inspect_folder(path).context_length == length
        async with embedder(path, lanes) as engine:
            assert engine.info.encoder.max_length == length
    for odd in ("[]", '{"max_seq_length": null}', "{", '{"max_seq_length": 10000}'):
        (folder / "sentence_bert_config.json").write_text(odd)
        assert inspect_folder(folder).context_length == 128


async def test_a_roberta_has_as_many_positions_as_lie_behind_its_padding(tmp_path, lanes):
    folder = build_encoder(tmp_path / "m", "xlm-roberta", max_position_embeddings=100)
    async with embedder(folder, lanes) as engine:
        assert engine.info.encoder.max_length == 98
        assert np.isfinite(await embed(engine, ["x " * 200])).all()


async def test_the_second_text_of_a_pair_is_cut_and_the_first_has_to_leave_room(tmp_path, lanes):
    folder = build_encoder(tmp_path / "m", scores=True, max_seq_length=20)
    async with embedder(folder, lanes) as engine:
        tokenizer = tokenizer_of(engine)
        [pair] = tokenizer.pairs("a b c", ["x " * 100], truncate=True)
        assert (len(pair), pair.second) == (20, 15)
        with pytest.raises(InputTooLong) as caught:
            tokenizer.pairs("a b c", ["x", "x " * 100], truncate=False)
        assert (caught.value.number, caught.value.prompt_tokens) == (1, 106)
        with pytest.raises(InputTooLong) as caught:
            tokenizer.pairs("x " * 100, ["a"], truncate=True)
        assert caught.value.number == -1


async def test_lower_case_is_made_where_the_folder_says_so(tmp_path, lanes):
    folder = build_encoder(tmp_path / "m")
    told = json.loads((folder / "tokenizer.json").read_text())
    told["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(told))
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    async with embedder(folder, lanes) as engine:
        upper, lower = inputs(engine, ["IMPORT", "import"])
        assert upper == lower


async def test_text_that_is_no_unicode_is_refused(folder, lanes):
    async with embedder(folder, lanes) as engine:
        with pytest.raises(InvalidRequest, match="surrogates"):
            inputs(engine, ["fine", "a\ud800b"])


async def test_a_very_long_text_is_read_in_pieces_and_no_further_than_the_model_does(folder, lanes, monkeypatch):
    import mlxd.engines.encoder_tokenizer as module

    async with embedder(folder, lanes) as engine:
        tokenizer = tokenizer_of(engine)
        texts = ["import os", "import os " * 9, "x " * 500, "class of"]
        whole = inputs(engine, texts)
        read = []
        encoded = module.EncoderTokenizer._encoded
        monkeypatch.setattr(module, "LONG_TEXT", 40)
        monkeypatch.setattr(
            module.EncoderTokenizer, "_encoded", lambda self, texts: read.append(texts) or encoded(self, texts)
        )
        assert inputs(engine, texts) == whole  # 40 characters end between words
        assert max(sum(map(len, texts)) for texts in read) <= 40
        assert sum(text.startswith("x ") for texts in read for text in texts) < 10
        with pytest.raises(InputTooLong):
            tokenizer.inputs(texts, truncate=False)


async def test_a_load_is_told_of_and_can_be_cancelled(folder, lanes):
    seen = []
    engine = EmbeddingEngine(EngineConfig("m", folder, 512), lanes)
    await engine.load(seen.append)
    assert [one.bytes_done for one in (seen[0], seen[-1])] == [0, engine.info.weight_bytes]
    assert await engine.close(EngineClosed("over"), 10)
    cancelled = EmbeddingEngine(EngineConfig("m", folder, 512), lanes)
    cancelled.cancel_load()
    with pytest.raises(LoadError) as caught:
        await cancelled.load()
    assert caught.value.reason == "cancelled"
