"""A model folder may bring Python code along; none of it is ever run."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.loader import load_text_model
from mlxd.engines.types import EngineConfig

FILES = ("modeling_own.py", "tokenization_own.py", "configuration_own.py")
CODE = """from pathlib import Path
Path({marker!r}).touch()
class Own:
    pass
Model = ModelArgs = OwnConfig = OwnTokenizer = OwnTokenizerFast = Own
"""


@pytest.fixture
def folder(tmp_path, micro_model):
    """A model whose folder has code that would leave a file `ran`."""
    path = tmp_path / "model"
    shutil.copytree(micro_model, path)
    for name in FILES:
        (path / name).write_text(CODE.format(marker=str(tmp_path / "ran")))
    return path


def change(path: Path, **fields):
    values = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


async def load(folder):
    """As the daemon loads: on a thread of its own."""
    config = EngineConfig("m", folder, 1000)
    loaded = await asyncio.to_thread(load_text_model, config, lambda _: None, lambda: False)
    await asyncio.to_thread(loaded.reading)
    return loaded


AUTO_MAP = {
    "AutoConfig": "configuration_own.OwnConfig",
    "AutoModelForCausalLM": "modeling_own.Own",
    "AutoTokenizer": ["tokenization_own.OwnTokenizer", "tokenization_own.OwnTokenizerFast"],
}
FOREIGN = {name: f"somebody/else--{value}" for name, value in AUTO_MAP.items() if isinstance(value, str)} | {
    "AutoTokenizer": ["somebody/else--tokenization_own.OwnTokenizer", None]
}


@pytest.mark.parametrize("auto_map", [AUTO_MAP, FOREIGN], ids=["own", "of another repository"])
@pytest.mark.parametrize("tokenizer", ["PreTrainedTokenizerFast", "OwnTokenizer", None])
async def test_code_that_a_tokenizer_or_a_model_names_is_not_run(folder, auto_map, tokenizer):
    change(folder / "config.json", auto_map=auto_map)
    change(folder / "tokenizer_config.json", auto_map=auto_map, tokenizer_class=tokenizer)
    try:
        loaded = await load(folder)
    except LoadError as error:
        assert error.reason is LoadFailure.BAD_FILES  # noqa: PT017 - either outcome is right
    else:
        assert loaded.tokenizer.encode("hello")
    assert not (folder.parent / "ran").exists()


async def test_a_model_whose_own_code_would_have_to_run_is_not_supported(folder):
    change(folder / "config.json", model_file="modeling_own.py")
    with pytest.raises(LoadError, match="never run") as caught:
        await load(folder)
    assert caught.value.reason is LoadFailure.UNSUPPORTED
    assert not (folder.parent / "ran").exists()


@pytest.mark.parametrize("name", ["tool_parser_type", "chat_template_type"])
@pytest.mark.parametrize("module", ["../modeling_own", "...modeling_own", "modeling_own", "os.path"])
async def test_a_name_in_the_files_picks_no_module_outside_of_the_library(folder, name, module, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    change(folder / "tokenizer_config.json", **{name: module})
    with pytest.raises(LoadError):
        await load(folder)
    assert not (folder.parent / "ran").exists()


async def test_a_model_type_picks_no_module_outside_of_the_library(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    for module in ("modeling_own", "..modeling_own", "../../modeling_own"):
        change(folder / "config.json", model_type=module)
        with pytest.raises(LoadError):
            await load(folder)
    assert not (folder.parent / "ran").exists()


async def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(LoadError):
        await load(folder)


async def test_a_chat_template_reaches_nothing_but_the_messages(folder):
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os.getcwd() }}"
    change(folder / "tokenizer_config.json", chat_template=template)
    loaded = await load(folder)
    with pytest.raises(Exception, match=r"unsafe|refuse|template"):
        loaded.tokenizer.encode_chat([{"role": "user", "content": "hi"}])
