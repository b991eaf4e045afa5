"""Speculative decoding and LoRA adapters in a real daemon, by configuration alone."""

from __future__ import annotations

import json
from functools import partial

import pytest
from daemon_process import Api, daemon
from lora_adapters import build_adapter
from tiny_models import build_tiny_model, cached

from mlxd.memory.adapters import inspect_adapter
from mlxd.memory.estimates import inspect_folder

PROMPTS = ("hello", "def main(args):\n    return", "one two three " * 40)
CONFIG = """
[[model]]
name = "plain"
path = "{models}/tiny"

[[model]]
name = "helped"
path = "{models}/tiny"
engine = {{ draft = "small", draft_tokens = 4 }}
adapters = {{ law = "{adapter}", "broken-1.0" = "{broken}" }}

[[model]]
name = "law-alone"
path = "{models}/tiny"
adapters = {{ law-plain = "{adapter}" }}

[[model]]
name = "mismatched"
path = "{models}/tiny"
engine = {{ draft = "foreign" }}
"""


def small_model():
    """Has the vocabulary of `tiny_model` and one layer."""
    return cached("small", partial(build_tiny_model, size="micro", vocab_size=2048))


@pytest.fixture(scope="module")
def adapter(tiny_model, tmp_path_factory):
    return build_adapter(tiny_model, tmp_path_factory.mktemp("adapters") / "law")


@pytest.fixture
def serving(tmp_path, models_dir, tiny_model, micro_model, adapter):
    """A running daemon with all of CONFIG."""
    models = models_dir({"tiny": tiny_model, "small": small_model(), "foreign": micro_model})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "adapter_config.json").write_text(json.dumps({"num_layers": 1}))
    config = CONFIG.format(models=models, adapter=adapter, broken=tmp_path / "broken")
    with daemon(tmp_path / "d", models, config) as running:
        yield running


async def test_greedy_answers_with_a_draft_are_those_of_the_model_alone(serving):
    async with Api(serving.url) as api:
        for prompt in PROMPTS:
            alone = await api.text("plain", prompt, max_tokens=40)
            assert alone == await api.text("helped", prompt, max_tokens=40)
            assert alone == await api.text("helped", prompt, max_tokens=40)
        draft = (await api.get("/admin/models/helped"))["engine"]["draft"]
        assert 0 <= draft["accepted_tokens"] < draft["proposed_tokens"]
        assert draft["acceptance_rate"] == draft["accepted_tokens"] / draft["proposed_tokens"]
        assert "draft" not in (await api.get("/admin/models/plain"))["engine"]
    [event] = [event for event in serving.events() if event["event"] == "engine.not_batched"]
    assert (event["model"], event["draft_tokens"]) == ("helped", 4)


async def test_an_adapter_answers_otherwise_than_its_base_with_a_draft_and_without(serving):
    async with Api(serving.url) as api:
        for prompt in PROMPTS:
            adapted = await api.text("law", prompt, max_tokens=40)
            assert adapted == await api.text("law-plain", prompt, max_tokens=40)
            assert adapted != await api.text("plain", prompt, max_tokens=40)


async def test_adapters_are_listed_as_models_and_all_bytes_are_counted(serving, tiny_model, adapter):
    tiny, small = (inspect_folder(path).weight_bytes for path in (tiny_model, small_model()))
    law = inspect_adapter(adapter).weight_bytes
    expected = {"plain": tiny, "helped": tiny + small, "law": tiny + small + law, "law-plain": tiny + law}
    assert law > 0
    async with Api(serving.url) as api:
        listed = {model["id"]: model for model in (await api.get("/v1/models"))["data"]}
        assert set(listed) >= {"helped", "law", "law-plain", "broken-1.0"}
        assert {name: listed[name]["weight_bytes"] for name in expected} == expected
        assert (listed["law"]["root"], listed["law"]["aliases"]) == ("law", [])
        for name, total in expected.items():
            status, model = await api.call("POST", f"/admin/models/{name}/load")
            assert (status, model["weight_bytes"], model["resident_bytes"]) == (200, total, total), model
        one = await api.get("/admin/models/law")
        assert (one["state"], one["path"]) == ("ready", str(serving.folder.parent / "models/tiny"))


async def test_a_draft_with_another_vocabulary_fails_its_models_load_with_what_to_do(serving):
    async with Api(serving.url) as api:
        status, answer = await api.chat("mismatched")
        error = answer["error"]
        assert (status, error["code"], error["details"]["reason"]) == (503, "model_load_failed", "unsupported")
        assert "engine.draft" in error["message"]
        assert "another vocabulary; choose a model of its family" in error["message"]
        assert (await api.chat("plain"))[0] == 200


async def test_a_broken_adapter_is_listed_and_noted_and_fails_its_load_as_bad_files(serving):
    async with Api(serving.url) as api:
        status, answer = await api.chat("broken-1.0")
        error = answer["error"]
        assert (status, error["code"], error["details"]["reason"]) == (503, "model_load_failed", "bad_files")
        assert str(serving.folder.parent / "broken") in error["message"]
        assert (await api.chat("helped"))[0] == 200
    notes = [event["note"] for event in serving.events() if event["event"] == "models.note"]
    assert [note for note in notes if "adapters.safetensors is missing" in note and note.startswith("broken-1.0 ")]
