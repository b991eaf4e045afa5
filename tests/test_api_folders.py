"""What is told of a model from its folder without loading it: template, capabilities, and when it is read again."""

import json
import threading
from dataclasses import replace

import pytest
from mlx_lm.tokenizer_utils import _infer_tool_parser
from tiny_models import CHAT_TEMPLATE, TOOL_TEMPLATE

from mlxd.daemon.api import folders
from mlxd.daemon.api.capabilities import _CALL_MARKERS, calls_can_be_read, capabilities
from mlxd.daemon.api.folders import FolderFacts, ModelFolders, read_facts
from mlxd.registry.spec import ModelKind, ModelSpec

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
    assert capabilities(ModelKind.TEXT, CHAT_TEMPLATE, takes_images=False) == ["completion"]
    assert capabilities(ModelKind.VISION, TOOL_TEMPLATE, takes_images=False) == ["completion", "tools", "thinking"]
    assert capabilities(ModelKind.VISION, CHAT_TEMPLATE, takes_images=True) == ["completion", "vision"]
    assert capabilities(ModelKind.EMBEDDING, TOOL_TEMPLATE, takes_images=False) == ["embedding"]
    # a template that shows tools does not make their calls readable
    assert capabilities(ModelKind.TEXT, "{{ tools }}", takes_images=False) == ["completion"]


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
