"""What there is, as Ollama clients list it: names, models in memory, one model, and the version."""

import json
import os
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import ollama
import pytest
from api_fakes import listening, serving
from mlx_lm.tokenizer_utils import _infer_tool_parser
from ollama_calls import client_of
from test_ollama_keep_alive import key
from tiny_models import CHAT_TEMPLATE, TOOL_TEMPLATE

from mlxd.daemon.api import folders
from mlxd.daemon.api.capabilities import _CALL_MARKERS, calls_can_be_read, capabilities
from mlxd.daemon.api.folders import FolderFacts, ModelFolders, read_facts
from mlxd.daemon.api.ollama.models import OLLAMA_VERSION
from mlxd.daemon.api.ollama.moments import NEVER
from mlxd.daemon.app import Daemon
from mlxd.daemon.keys import Scope
from mlxd.daemon.settings import ModelSettings, ModelsSettings, PresetSettings, SamplingSettings, Settings
from mlxd.memory.probe import SystemProbe
from mlxd.registry.spec import ModelKind, ModelSpec

QWEN = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "quantization": {"bits": 4, "group_size": 64},
}
NEWEST = 1_700_000_000
PRESET = PresetSettings("qwen-cold", SamplingSettings(temperature=0.0, stop=("a b", '"')))
ENTRY = ModelSettings(
    "qwen",
    aliases=("gpt-4o",),
    presets=(PRESET,),
    engine={"context_length": 8192},
    sampling=SamplingSettings(top_p=0.9, max_tokens=100, xtc_probability=0.1),
)


class Listed:
    """A daemon's own application over folders that nothing is loaded from."""

    def __init__(self, url):
        self.url = url


@asynccontextmanager
async def listed(folder, *entries, **models):
    settings = Settings(models=ModelsSettings(dirs=(folder,), **models), model=entries)
    daemon = Daemon(settings, SystemProbe(), hf_cache=None)
    async with listening(daemon.application()) as port:
        yield client_of(Listed(f"http://127.0.0.1:{port}"))
    await daemon.close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "qwen" / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    return tmp_path


async def test_every_name_is_listed_with_what_the_files_say(folder):
    os.utime(folder / "qwen" / "config.json", (NEWEST - 5, NEWEST - 5))
    os.utime(folder / "qwen" / "chat_template.jinja", (NEWEST, NEWEST))
    async with listed(folder, ENTRY) as client:
        models = (await client.list()).models
    assert [model.model for model in models] == ["qwen", "gpt-4o", "qwen-cold"]
    assert {model.modified_at for model in models} == {datetime.fromtimestamp(NEWEST, UTC)}
    plain, alias, preset = models
    assert (plain.details.format, plain.details.family, plain.details.families) == ("mlx", "qwen3", ["qwen3"])
    assert plain.details.quantization_level == "4bit"
    assert len(plain.digest) == 64
    assert plain.digest == alias.digest != preset.digest


async def test_a_digest_stays_until_the_files_change(folder):
    async with listed(folder, ENTRY) as client:
        [before, *_] = (await client.list()).models
        [again, *_] = (await client.list()).models
    async with listed(folder, ENTRY) as client:
        [restarted, *_] = (await client.list()).models
    (folder / "qwen" / "config.json").write_text(json.dumps({**QWEN, "vocab_size": 1}))
    async with listed(folder, ENTRY) as client:
        [changed, *_] = (await client.list()).models
    assert before.digest == again.digest == restarted.digest != changed.digest


async def test_one_model_is_shown_without_loading_it(folder):
    async with listed(folder, ENTRY) as client:
        shown = await client.show("gpt-4o")
        cold = await client.show("QWEN-cold:latest")
        assert (await client.ps()).models == []
    assert shown.modelinfo == {
        "general.architecture": "qwen3",
        "general.basename": "qwen",
        "qwen3.context_length": 8192,
        "qwen3.embedding_length": 4096,
        "qwen3.block_count": 36,
        "qwen3.attention.head_count": 32,
        "qwen3.attention.head_count_kv": 8,
        "qwen3.vocab_size": 151936,
    }
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.template == TOOL_TEMPLATE
    assert shown.parameters.splitlines() == ["top_p 0.9", "num_predict 100"]
    assert cold.parameters.splitlines()[-2:] == ['stop "a b"', 'stop "\\""']
    assert "temperature 0.0" in cold.parameters
    assert shown.modelfile.splitlines() == ["FROM qwen", "PARAMETER top_p 0.9", "PARAMETER num_predict 100"]


async def test_a_model_that_is_not_there_is_not_shown(folder):
    async with listed(folder, ENTRY) as client:
        with pytest.raises(ollama.ResponseError, match="did you mean qwen") as failed:
            await client.show("qwem")
    assert failed.value.status_code == 404


async def test_a_folder_that_says_nothing_is_listed_all_the_same(tmp_path):
    for name in ("empty", "odd"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    odd = {"model_type": 1, "quantization": {"bits": "4"}, "hidden_size": -1, "torch_dtype": ["float32"]}
    (tmp_path / "odd" / "config.json").write_text(json.dumps(odd))
    (tmp_path / "odd" / "tokenizer_config.json").write_text("[")
    async with listed(tmp_path) as client:
        models = (await client.list()).models
        assert [model.model for model in models] == ["empty", "odd"]
        assert {model.details.family for model in models} == {""}
        assert (await client.show("odd")).modelinfo["general.architecture"] == "unknown"


async def test_models_in_memory_say_when_they_leave():
    async with serving() as served:
        now = served.services.wall_clock()
        snapshots = {
            "m": {"state": "ready", "resident_bytes": 500, "ttl": 60.0, "unload_at": now + 30},
            "org/embed": {"state": "draining", "resident_bytes": 400, "ttl": None},
        }
        specs = served.registry.specs
        plain = served.registry.model
        served.registry.models = lambda: [replace(plain(name), **snapshots[name]) for name in specs]
        client = client_of(served)
        embed, m = (await client.ps()).models
        assert (embed.name, embed.model, embed.expires_at) == ("org/embed", "org/embed", datetime.fromisoformat(NEVER))
        assert (m.name, m.size, m.size_vram, m.context_length) == ("m", 500, 500, 100)
        assert abs(m.expires_at.timestamp() - now - 30) < 0.01
        for change in ({"unload_at": None}, {"pinned": True}):
            snapshots["m"] |= change
            [m] = [each for each in (await client.ps()).models if each.name == "m"]
            in_use = 50 < m.expires_at.timestamp() - now < 100
            assert in_use if "unload_at" in change else m.expires_at == datetime.fromisoformat(NEVER)
        for snapshot in snapshots.values():
            snapshot["state"] = "loading"
        assert (await client.ps()).models == []


async def test_a_key_sees_its_own_models_only():
    keys = (key("embedder", Scope.INFER, models=("org/*",)), key("cold", Scope.INFER, models=("m-cold",)))
    async with serving(keys=keys) as served:
        plain = served.registry.model
        served.registry.models = lambda: [replace(plain(name), state="ready") for name in served.registry.specs]
        for name, names, resident in (("embedder", ["org/embed"], ["org/embed"]), ("cold", ["m-cold"], [])):
            client = client_of(served, headers={"Authorization": f"Bearer {name}"})
            assert [model.model for model in (await client.list()).models] == names
            assert [model.model for model in (await client.ps()).models] == resident
            with pytest.raises(ollama.ResponseError) as refused:
                await client.show("gpt-4o")
            assert refused.value.status_code == 403
        with pytest.raises(ollama.ResponseError) as refused:
            await client_of(served).list()
        assert refused.value.status_code == 401


async def test_the_version_is_one_that_clients_ask_for():
    async with serving() as served:
        response = await client_of(served)._client.get("/api/version")
        answer = response.json()
    assert answer == {"version": OLLAMA_VERSION, "mlxd": served.services.version}
    # what Open WebUI and Copilot ask for at least
    assert tuple(map(int, answer["version"].split("."))) >= (0, 6, 4)


TEMPLATES = ["", CHAT_TEMPLATE, TOOL_TEMPLATE, "{% if tools %}{{ tools }}{% endif %}", "<tool_call> only"]
TEMPLATES += ["".join(texts) for texts in _CALL_MARKERS]


class Templated:
    """All that mlx-lm looks at to tell whose calls a template's are."""

    def __init__(self, template):
        self.chat_template = template

    def get_vocab(self):
        return {}


@pytest.mark.parametrize("template", TEMPLATES)
def test_calls_are_those_that_mlx_lm_reads(template):
    assert calls_can_be_read(template) == (_infer_tool_parser(Templated(template)) is not None)


def test_capabilities_are_what_is_served():
    assert capabilities(ModelKind.TEXT, CHAT_TEMPLATE) == ["completion"]
    assert capabilities(ModelKind.VISION, TOOL_TEMPLATE) == ["completion", "tools", "thinking"]
    assert capabilities(ModelKind.EMBEDDING, TOOL_TEMPLATE) == ["embedding"]
    # a template that shows tools does not make their calls readable
    assert capabilities(ModelKind.TEXT, "{{ tools }}") == ["completion"]


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config.json": {"chat_template": "a"}}, "a"),
        ({"tokenizer_config.json": {"chat_template": "a"}, "chat_template.json": {"chat_template": "b"}}, "b"),
        ({"tokenizer_config.json": {"chat_template": "a"}, "chat_template.jinja": "c"}, "c"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
                }
            },
            "d",
        ),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "t"}, 1]}}, "t"),
        ({"tokenizer_config.json": {"chat_template": 1}}, ""),
        ({}, ""),
    ],
)
def test_the_chat_template_is_the_one_that_holds(tmp_path, files, template):
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert read_facts(tmp_path).template == template


@pytest.mark.parametrize(
    ("config", "level", "count"),
    [
        ({"quantization": {"bits": 4, "group_size": 64}}, "4bit", "8.0B"),
        ({"quantization_config": {"bits": 8, "group_size": 32}}, "8bit", "4.0B"),
        ({"torch_dtype": "bfloat16"}, "BF16", "2.2B"),
        ({"dtype": "float32"}, "F32", "1.1B"),
        ({}, "", ""),
    ],
)
async def test_the_size_is_told_from_the_bytes(tmp_path, config, level, count):
    (tmp_path / "config.json").write_text(json.dumps(config))
    async with serving() as served:
        spec = ModelSpec("m", tmp_path, weight_bytes=4_500_000_000, load_key="1")
        served.registry.specs["m"] = spec
        shown = await client_of(served).show("m")
    assert (shown.details.quantization_level, shown.details.parameter_size) == (level, count)


async def test_a_folder_is_read_again_only_when_it_has_changed(tmp_path):
    reader = ModelFolders()
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')
    spec = ModelSpec("m", tmp_path, load_key="1")
    assert (await reader.facts(spec)).family == "llama"
    config.write_text('{"model_type": "qwen3"}')
    assert (await reader.facts(spec)).family == "llama"
    assert (await reader.facts(replace(spec, load_key="2"))).family == "qwen3"


async def test_a_disk_that_does_not_answer_holds_nobody_up(tmp_path, monkeypatch):
    let_go = threading.Event()
    monkeypatch.setattr(folders, "PATIENCE", 0.01)
    monkeypatch.setattr(folders, "read_facts", lambda _: let_go.wait(10) and FolderFacts("llama"))
    reader = ModelFolders()
    assert await reader.facts(ModelSpec("m", tmp_path, load_key="1")) == FolderFacts()
    assert await reader.facts(ModelSpec("m", tmp_path, load_key="1")) == FolderFacts()
    let_go.set()
