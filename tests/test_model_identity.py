"""A model's identity changes with what its cache depends on, and with nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mlxd.engines import model_identity as module
from mlxd.engines.model_identity import model_identity


@pytest.fixture
def model(micro_model: Path, tmp_path: Path) -> Path:
    shutil.copytree(micro_model, tmp_path / "model")
    return tmp_path / "model"


def touch_weights(model: Path) -> None:
    os.utime(model / "model.safetensors", ns=(1, 1))


def rewrite(name: str):
    def change(model: Path) -> None:
        file = model / name
        status = file.stat()
        file.write_bytes(file.read_bytes().replace(b"0", b"1"))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    return change


def longer_weights(model: Path) -> None:
    status = (model / "model.safetensors").stat()
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"x")
    os.utime(model / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = {
    "weights-time": touch_weights,
    "weights-size": longer_weights,
    "config": rewrite("config.json"),
    "tokenizer": rewrite("tokenizer.json"),
    "renamed": lambda model: (model / "model.safetensors").rename(model / "other.safetensors"),
    "new-file": lambda model: (model / "code.py").write_text("x = 1"),
    "gone-file": lambda model: (model / "tokenizer_config.json").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_it_changes_with_the_files(model, change):
    before = model_identity(model)
    change(model)
    assert model_identity(model) != before


def test_it_changes_with_the_adapter_and_the_versions(model, monkeypatch):
    before = model_identity(model)
    assert model_identity(model, "adapter") != before
    monkeypatch.setattr(module, "version", lambda package: "0.0.1")
    assert model_identity(model) != before


def test_it_stays_with_the_model_where_nothing_changed(model, tmp_path):
    before = model_identity(model)
    (model / ".DS_Store").write_text("")
    os.utime(model / "config.json", ns=(1, 1))
    assert model_identity(model) == before
    assert model_identity(model.rename(tmp_path / "moved")) == before
    assert len(before) == 32
    assert set(before) <= set("0123456789abcdef")


def test_links_into_the_hubs_cache_are_followed(model, tmp_path):
    blob = tmp_path / "blobs" / "abc"
    blob.parent.mkdir()
    (model / "model.safetensors").rename(blob)
    (model / "model.safetensors").symlink_to(blob)
    before = model_identity(model)
    os.utime(blob, ns=(1, 1))
    assert model_identity(model) != before


def test_what_is_no_regular_file_is_passed_over(model):
    before = model_identity(model)
    os.mkfifo(model / "tokenizer.model")
    (model / "dangling.json").symlink_to("nowhere")
    (model / "loop.json").symlink_to("loop.json")
    (model / "folder.json").mkdir()
    (model / "config.py").symlink_to("/dev/zero")
    assert model_identity(model) == before


def test_a_single_file_is_a_model_and_a_missing_one_is_an_error(model, tmp_path):
    assert model_identity(model / "model.safetensors") != model_identity(model)
    with pytest.raises(FileNotFoundError):
        model_identity(tmp_path / "nothing")
