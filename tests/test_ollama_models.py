"""What there is, as Ollama clients list it: names, models in memory, one model, and the version."""

import json
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import ollama
import pytest
from api_fakes import listening, serving
from ollama_calls import client_of
from test_ollama_keep_alive import key
from tiny_models import TOOL_TEMPLATE

from mlxd.daemon.api.folders import FOLDERS
from mlxd.daemon.api.ollama.models import OLLAMA_VERSION
from mlxd.daemon.api.ollama.moments import NEVER, rfc3339
from mlxd.daemon.app import Daemon
from mlxd.daemon.keys import Scope
from mlxd.daemon.settings import ModelSettings, ModelsSettings, PresetSettings, SamplingSettings, Settings
from mlxd.memory.probe import SystemProbe
from mlxd.registry.spec import ModelSpec

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


async def test_a_folder_of_nonsense_spoils_the_lists_for_nobody(tmp_path):
    nonsense = {
        "half": ({"model_type": "\ud83d"}, {"chat_template": "tools \ud83d"}),
        "listed": ({}, {"chat_template": [{"name": ["x"], "template": "t"}, {"name": {}}, {"name": "default"}]}),
    }
    for name, contents in nonsense.items():
        (tmp_path / name).mkdir()
        for file, content in zip(("config.json", "tokenizer_config.json"), contents, strict=True):
            (tmp_path / name / file).write_text(json.dumps(content))
    (tmp_path / "listed" / "chat_template.jinja").symlink_to("chat_template.jinja")
    async with listed(tmp_path) as client:
        families = {model.model: model.details.family for model in (await client.list()).models}
        assert families == {"half": "\\ud83d", "listed": ""}
        assert (await client.show("half")).template == "tools \\ud83d"
        assert (await client.show("listed")).template == ""
        studio = (await client._client.get("/api/v1/models")).json()["models"]
        assert [model["key"] for model in studio] == ["half", "listed"]


@pytest.mark.parametrize(("seconds", "written"), [(1e12, "9999-12-31T23:59:59"), (-1e12, "0001-01-01T00:00:00")])
def test_a_moment_that_nobody_can_write_is_the_nearest_one(seconds, written):
    assert rfc3339(seconds) == f"{written}.000000Z"


async def test_a_model_that_goes_while_the_names_are_listed_spoils_nothing():
    async with serving() as served:
        reader = served.application[FOLDERS]
        read = reader.facts

        async def facts(spec):
            served.registry.specs.pop("org/embed", None)
            return await read(spec)

        reader.facts = facts
        names = [model.model for model in (await client_of(served).list()).models]
    assert names == ["m", "org/embed", "gpt-4o", "m-cold"]


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
