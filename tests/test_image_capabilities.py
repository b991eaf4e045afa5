"""What a model can do is told from its files, and is the same in every API's words."""

import json

import aiohttp
import pytest
from api_fakes import SEES, SPECS, serving
from tiny_models import TOOL_TEMPLATE

from mlxd.daemon import catalog_basis
from mlxd.daemon.catalog import build_catalog
from mlxd.daemon.settings import ModelsSettings, Settings

VISION = {"model_type": "qwen2_vl", "vision_config": {"depth": 1}}


async def fetch(served, path, body=None, **headers):
    method = "GET" if body is None else "POST"
    async with aiohttp.ClientSession(served.url, headers=headers) as http, http.request(method, path, json=body) as got:
        assert got.status == 200
        return await got.json()


def named(models, key="id"):
    return {model[key]: model for model in models}


@pytest.fixture
async def served():
    async with serving(specs=(*SPECS, SEES)) as served:
        yield served


async def test_the_models_say_what_they_can_do(served):
    for path in ("/v1/models", "/models", "/admin/models"):
        models = named((await fetch(served, path))["data"])
        assert models["sees"]["capabilities"] == ["completion", "vision"]
        assert models["m"]["capabilities"] == ["completion"]
        assert models["org/embed"]["capabilities"] == ["embedding"]
        assert (models["sees"]["context_length"], models["org/embed"]["context_length"]) == (100, 50)


async def test_a_router_of_llama_cpp_says_what_models_read(served):
    models = named((await fetch(served, "/models"))["data"])
    assert models["sees"]["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
    assert models["m"]["architecture"]["input_modalities"] == ["text"]
    assert "architecture" not in models["org/embed"]


async def test_anthropics_clients_get_no_capabilities_as_theirs_are_others(served):
    listed = await fetch(served, "/v1/models", **{"anthropic-version": "2023-06-01"})
    assert [model for model in listed["data"] if "capabilities" in model] == []


async def test_ollama_and_lm_studio_know_who_takes_images(served):
    tags = named((await fetch(served, "/api/tags"))["models"], "name")
    assert (tags["sees"]["capabilities"], tags["m"]["capabilities"]) == (["completion", "vision"], ["completion"])
    assert tags["org/embed"]["capabilities"] == ["embedding"]
    assert (await fetch(served, "/api/show", {"model": "sees"}))["capabilities"] == ["completion", "vision"]
    models = named((await fetch(served, "/api/v1/models"))["models"], "key")
    # clients of LM Studio look for models of the type llm, whatever they take
    assert (models["sees"]["type"], models["sees"]["capabilities"]["vision"]) == ("llm", True)
    assert models["m"]["capabilities"]["vision"] is False


def folder(tmp_path, name, config, **files):
    path = tmp_path / name
    path.mkdir()
    for file, content in {"config.json": config, **files}.items():
        (path / file).write_text(content if isinstance(content, str) else json.dumps(content))


def capabilities(catalog):
    return {spec.name: catalog.capabilities(spec) for spec in catalog.specs}


def test_a_catalog_reads_them_from_the_folders(tmp_path):
    folder(tmp_path, "plain", {"model_type": "llama"})
    folder(tmp_path, "tools", {"model_type": "llama"}, **{"chat_template.json": {"chat_template": TOOL_TEMPLATE}})
    folder(tmp_path, "sees", VISION, **{"chat_template.jinja": "{{ messages }}"})
    folder(tmp_path, "unknown", {**VISION, "model_type": "nobody_knows"})
    folder(tmp_path, "vectors", {"model_type": "bert", "architectures": ["BertModel"]})
    settings = Settings(models=ModelsSettings(dirs=(tmp_path,)))
    assert capabilities(build_catalog(settings, None)) == {
        "plain": ["completion"],
        "tools": ["completion", "tools", "reasoning"],
        "sees": ["completion", "vision"],
        "unknown": ["completion"],
        "vectors": ["embedding"],
    }


def test_a_template_is_read_again_only_when_the_files_have_changed(tmp_path, monkeypatch):
    read = []
    real = catalog_basis.read_template
    monkeypatch.setattr(catalog_basis, "read_template", lambda path: read.append(path.name) or real(path))
    for name in ("a", "b"):
        folder(tmp_path, name, {"model_type": "llama"}, **{"chat_template.jinja": "x"})
    settings = Settings(models=ModelsSettings(dirs=(tmp_path,)))
    first = build_catalog(settings, None)
    assert sorted(read) == ["a", "b"]
    (tmp_path / "b" / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    second = build_catalog(settings, None, first.basis)
    assert sorted(read) == ["a", "b", "b"]
    assert capabilities(second) == {"a": ["completion"], "b": ["completion", "tools", "reasoning"]}
