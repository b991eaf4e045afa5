"""`mlxd import` makes a model folder where the daemon finds it, or nothing at all."""

from __future__ import annotations

import json

import pytest
from cli_process import mlxd
from gguf_files import model_metadata, model_tensors, write_gguf

from mlxd.daemon.model_name import name_complaint


@pytest.fixture(scope="module")
def gguf(micro_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "micro.gguf"
    return write_gguf(path, model_metadata(micro_model), model_tensors(micro_model))


@pytest.fixture
def run_import(tmp_path):
    def run_import(file, name, *args, **extra):
        return mlxd("import", str(file), "--name", name, *args, home=tmp_path, **extra)

    return run_import


def test_the_first_models_folder_gets_the_model(gguf, run_import, tmp_path):
    done = run_import(gguf, "org/tiny", "--quantize", "8")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / ".mlxd" / "models" / "org" / "tiny"
    assert json.loads((folder / "config.json").read_text())["quantization"]["bits"] == 8
    said = done.stdout.decode()
    assert f"made org/tiny in {folder}" in said
    assert "8 bits" in said
    assert "mlxd run org/tiny" in said
    assert "mlxd serve" not in said
    again = run_import(gguf, "org/tiny")
    assert (again.returncode, again.stdout) == (1, b"")
    assert f"mlxd: {folder} exists already" in again.stderr.decode()


def test_another_folder_comes_with_the_command_that_serves_it(gguf, run_import, tmp_path):
    done = run_import(gguf, "tiny", "--models-dir", str(tmp_path / "my models"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my models" / "tiny" / "config.json").is_file()
    assert f"mlxd serve --models-dir '{tmp_path}/my models'" in done.stdout.decode()


def test_a_file_that_is_no_gguf_leaves_nothing(run_import, tmp_path):
    source = tmp_path / "x.gguf"
    source.write_bytes(b"nonsense")
    done = run_import(source, "tiny")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"mlxd: ")
    assert b"Traceback" not in done.stderr
    assert list((tmp_path / ".mlxd" / "models").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_message(gguf, run_import, tmp_path):
    (tmp_path / "blocked").write_text("a file")
    done = run_import(gguf, "org/tiny", MLXD_MODELS__DIRS=str(tmp_path / "blocked" / "deep"))
    assert done.returncode == 1
    assert done.stderr.startswith(b"mlxd: ")
    assert b"Traceback" not in done.stderr


def test_a_model_inside_a_model_is_refused(gguf, run_import, tmp_path):
    outer = tmp_path / ".mlxd" / "models" / "org"
    outer.mkdir(parents=True)
    (outer / "config.json").write_text("{}")
    done = run_import(gguf, "org/tiny")
    assert done.returncode == 1
    assert b"is a model itself" in done.stderr


@pytest.mark.parametrize(
    "name", ["a/b/c", "/a", "a/", "a//b", ".a", "org/.a", "../a", "..", "-a", "a\\b", "a\n", " a", "a" * 201]
)
def test_a_name_that_is_no_folder_here_is_refused(name):
    assert name_complaint(name) is not None


def test_bad_names_exit_2(gguf, run_import, tmp_path):
    for name in ("", "../up", "a/b/c"):
        done = run_import(gguf, name)
        assert done.returncode == 2
        assert b"--name" in done.stderr
    assert not (tmp_path / ".mlxd").exists()


@pytest.mark.parametrize("name", ["a", "Qwen3-8B-4bit", "org/a.b_c", "モデル", "a b"])
def test_a_usual_name_is_taken(name):
    assert name_complaint(name) is None
