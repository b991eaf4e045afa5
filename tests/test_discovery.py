"""Models are found on disk, and nothing on disk makes the search fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxd.memory.estimates import inspect_folder
from mlxd.registry.discovery import Discovery, FolderFacts, discover, snapshot_of
from mlxd.registry.spec import ModelKind, ModelSpec


def facts(path: Path) -> FolderFacts:
    found = inspect_folder(path)
    return FolderFacts(found.weight_bytes, found.kv_bytes_per_token, found.context_length, found.problem)


def nothing(path: Path) -> FolderFacts:
    return FolderFacts()


def make(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return folder


def find(*dirs: Path) -> Discovery:
    return discover(dirs, None, nothing)


def names(found: Discovery) -> list[str]:
    return [spec.name for spec in found.specs]


def test_folders_with_a_config_are_models_one_and_two_levels_deep(tmp_path: Path):
    for name in ("b", "a", "org/name", "org/other"):
        make(tmp_path / name)
    make(tmp_path / "deep/er/still")
    make(tmp_path / "b/inner")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    found = find(tmp_path)
    assert names(found) == ["a", "b", "org/name", "org/other"]
    assert [spec.path for spec in found.specs] == [tmp_path / name for name in names(found)]
    assert found.notes == ()


def test_hidden_and_temporary_folders_are_passed_over(tmp_path: Path):
    for name in (".hidden", ".tmp-model-1a2b", "org/.tmp-x", "org/fine", ".git/objects"):
        make(tmp_path / name)
    found = find(tmp_path)
    assert names(found) == ["org/fine"]
    assert found.notes == ()


def test_the_facts_of_the_inspection_are_on_the_spec(tmp_path: Path, micro_model: Path):
    shutil.copytree(micro_model, tmp_path / "good")
    make(tmp_path / "empty")
    empty, good = discover([tmp_path], None, facts).specs
    assert good.problem is None
    assert good.weight_bytes > 100_000
    assert good.context_length == 32768
    assert good.kv_bytes_per_token == 2 * 32 * 4
    assert empty.problem is not None


def test_a_broken_config_is_listed_with_its_problem(tmp_path: Path):
    for name, content in {"not-json": b"{", "list": b"[]", "binary": b"\xff\xfe", "deep": b"[" * 100_000}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(content)
    (tmp_path / "folder" / "config.json").mkdir(parents=True)
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "config.json").symlink_to("nowhere")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    found = discover([tmp_path], None, facts)
    assert names(found) == ["binary", "dangling", "deep", "folder", "list", "not-json", "pipe"]
    assert all(spec.problem for spec in found.specs)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), ValueError("odd")])
def test_an_inspection_that_fails_is_a_problem_of_that_model(tmp_path: Path, error: Exception):
    def failing(path: Path) -> FolderFacts:
        if path.name == "bad":
            raise error
        return FolderFacts()

    make(tmp_path / "bad")
    make(tmp_path / "good")
    bad, good = discover([tmp_path], None, failing).specs
    assert bad.problem is not None
    assert good.problem is None


def test_links_are_followed_but_not_in_circles(tmp_path: Path):
    make(tmp_path / "elsewhere/model")
    models = tmp_path / "models"
    make(models / "real")
    (models / "link").symlink_to(tmp_path / "elsewhere/model")
    (models / "self").symlink_to(models / "self")
    (models / "up").symlink_to(models)
    (models / "dead").symlink_to("nowhere")
    found = find(models)
    assert names(found) == ["link", "real"]
    assert [note.split()[0] for note in found.notes] == [str(models / name) for name in ("dead", "self", "up")]


@pytest.mark.parametrize("name", [b"caf\xe9", b"new\nline", b"bell\x07"])
def test_a_name_that_no_request_can_hold_is_noted(tmp_path: Path, name: bytes):
    make(tmp_path / os.fsdecode(name))
    make(tmp_path / "café")
    found = find(tmp_path)
    assert names(found) == ["café"]
    assert len(found.notes) == 1
    found.notes[0].encode("utf-8")
    assert found.notes[0].isprintable()


def test_a_folder_that_is_missing_or_a_file_is_noted(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    make(tmp_path / "models/m")
    found = find(tmp_path / "missing", tmp_path / "file", tmp_path / "models")
    assert names(found) == ["m"]
    assert [str(tmp_path / name) in note for name, note in zip(("missing", "file"), found.notes, strict=True)] == [
        True
    ] * 2


def test_a_model_given_as_models_folder_is_noted(tmp_path: Path):
    found = find(make(tmp_path / "m"))
    assert found.specs == ()
    assert "is a model itself" in found.notes[0]


@pytest.fixture
def unprivileged_dir() -> Iterator[Path]:
    """A folder of a user that permissions hold for."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    user = os.geteuid()
    yield folder
    os.seteuid(user)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(folder)


def test_folders_without_permission_are_noted(unprivileged_dir: Path):
    make(unprivileged_dir / "good")
    for name in ("closed", "org/closed"):
        make(unprivileged_dir / name)
        (unprivileged_dir / name).chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    found = discover([unprivileged_dir], None, facts)
    assert names(found) == ["good"]
    closed = [str(unprivileged_dir / name) for name in ("closed", "org/closed")]
    assert [note.split()[0] for note in found.notes] == closed


@pytest.mark.parametrize("mode", [0, 0o111, 0o444])
def test_known_models_stay_listed_where_permission_is_gone(unprivileged_dir: Path, mode: int):
    for name in ("one/m", "two/m", "two/org/n", "two/k"):
        make(unprivileged_dir / name)
    before = find(unprivileged_dir / "one", unprivileged_dir / "two")
    known = {spec.path: replace(spec, weight_bytes=7) for spec in before.specs}
    shutil.rmtree(unprivileged_dir / "two/k")
    for closed in ("one", "two/org"):
        (unprivileged_dir / closed).chmod(mode)
    if os.geteuid() == 0:
        os.seteuid(65534)
    found = discover([unprivileged_dir / "one", unprivileged_dir / "two"], None, nothing, known)
    assert [(spec.name, spec.weight_bytes) for spec in found.specs] == [("m", 7), ("two/m", 0), ("org/n", 7)]
    assert [spec.path for spec in found.specs] == [unprivileged_dir / name for name in ("one/m", "two/m", "two/org/n")]


def test_known_models_of_a_missing_folder_are_those_that_could_be_there(tmp_path: Path):
    paths = [tmp_path / name for name in ("m/a", "m/org/b", "m/too/deep/c", "m/.hidden/d", "elsewhere/e")]
    found = discover([tmp_path / "m"], None, nothing, {path: ModelSpec("x", path) for path in paths})
    assert names(found) == ["a", "org/b"]
    assert found.unreadable == {tmp_path / "m"}


def test_known_models_of_the_cache_stay_while_it_is_away(tmp_path: Path, micro_model: Path):
    cache_repo(tmp_path / "hub", "org/m", micro_model)
    before = discover([], tmp_path / "hub", facts)
    (tmp_path / "hub").rename(tmp_path / "away")
    found = discover([], tmp_path / "hub", facts, {spec.path: spec for spec in before.specs})
    assert found.specs == before.specs
    [note] = found.notes
    assert note.startswith(f"{tmp_path / 'hub'} cannot be read")


# ---- equal names


def test_of_equal_names_the_first_folder_wins_and_the_later_gets_a_longer_name(tmp_path: Path):
    for name in ("one/m", "two/m", "two/n"):
        make(tmp_path / name)
    found = find(tmp_path / "one", tmp_path / "two")
    assert [(spec.name, spec.path) for spec in found.specs] == [
        ("m", tmp_path / "one/m"),
        ("two/m", tmp_path / "two/m"),
        ("n", tmp_path / "two/n"),
    ]
    assert len(found.notes) == 1
    assert f"m means {tmp_path / 'one/m'}" in found.notes[0]
    assert "listed as two/m" in found.notes[0]


def test_names_that_differ_in_case_alone_count_as_equal(tmp_path: Path):
    make(tmp_path / "one/Model")
    make(tmp_path / "two/model")
    found = find(tmp_path / "one", tmp_path / "two")
    assert names(found) == ["Model", "two/model"]
    assert len(found.notes) == 1


def test_a_model_with_no_free_name_is_noted_and_not_listed(tmp_path: Path):
    for name in ("a/models/m", "b/models/m", "c/models/m"):
        make(tmp_path / name)
    found = find(*(tmp_path / name / "models" for name in "abc"))
    assert names(found) == ["m", "models/m"]
    assert f"the model in {tmp_path / 'c/models/m'} is not listed" in found.notes[-1]


def test_the_same_folder_given_twice_is_searched_once(tmp_path: Path):
    make(tmp_path / "models/m")
    (tmp_path / "link").symlink_to(tmp_path / "models")
    found = find(tmp_path / "models", tmp_path / "link", tmp_path / "models/../models")
    assert names(found) == ["m"]
    assert found.notes == ()


# ---- the Hugging Face cache


def cache_repo(cache: Path, repo: str, source: Path, commit: str = "abc123", ref: str | None = "abc123") -> Path:
    """Lay a model out as the hub's cache does: links in a snapshot to blobs."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for file in source.iterdir():
        shutil.copy(file, folder / "blobs" / file.name)
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    if ref is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(ref)
    return snapshot


def test_cached_repos_that_mlx_can_serve_are_listed(tmp_path: Path, micro_model: Path):
    snapshot = cache_repo(tmp_path, "mlx-community/micro", micro_model)
    cache_repo(tmp_path, "gpt2", micro_model, ref=None)
    cache_repo(tmp_path, "odd/typed", make(tmp_path / "src/odd", model_type="whisper"))
    cache_repo(tmp_path, "no/type", make(tmp_path / "src/none", model_type=None))
    cache_repo(tmp_path, "evil/type", make(tmp_path / "src/evil", model_type="../models/llama"))
    cache_repo(tmp_path, "half/done", make(tmp_path / "src/half"))
    (tmp_path / "models--empty--repo").mkdir()
    (tmp_path / "datasets--org--data" / "snapshots" / "1").mkdir(parents=True)
    (tmp_path / "models--a--file").write_text("x")
    found = discover([], tmp_path, facts)
    assert names(found) == ["gpt2", "mlx-community/micro"]
    assert found.specs[1].path == snapshot
    assert found.specs[1].weight_bytes > 0
    assert len(found.notes) == 1
    assert found.notes[0].startswith("half/done in the Hugging Face cache is not listed")


def test_the_main_branch_says_which_snapshot_counts(tmp_path: Path, micro_model: Path):
    cache_repo(tmp_path, "org/m", micro_model, commit="old", ref=None)
    new = cache_repo(tmp_path, "org/m", micro_model, commit="new", ref="new\n")
    assert snapshot_of(tmp_path, "org/m") == new
    (tmp_path / "models--org--m/refs/main").unlink()
    assert snapshot_of(tmp_path, "org/m") is None
    for bad in ("gone", "../../x", "", "\xff"):
        (tmp_path / "models--org--m/refs/main").write_text(bad, encoding="latin-1")
        assert snapshot_of(tmp_path, "org/m") is None
    assert discover([], tmp_path, facts).specs == ()


@pytest.mark.parametrize("repo", ["none/such", "../..", "", "/etc"])
def test_a_repo_that_is_not_cached_has_no_snapshot(tmp_path: Path, repo: str):
    assert snapshot_of(tmp_path, repo) is None


def test_a_missing_cache_is_no_event(tmp_path: Path):
    found = discover([], tmp_path / "missing", facts)
    assert (found.specs, found.notes) == ((), ())


def test_a_models_folder_wins_over_the_cache(tmp_path: Path, micro_model: Path):
    make(tmp_path / "models/org/m")
    cache_repo(tmp_path / "hub", "org/m", micro_model)
    found = discover([tmp_path / "models"], tmp_path / "hub", facts)
    assert names(found) == ["org/m", "hub/org/m"]
    assert found.specs[0].path == tmp_path / "models/org/m"


def test_the_kind_is_on_the_spec(tmp_path: Path):
    make(tmp_path / "eyes", vision_config={"depth": 2})
    make(tmp_path / "words")
    assert [spec.kind for spec in find(tmp_path).specs] == [ModelKind.VISION, ModelKind.TEXT]


def test_discovery_imports_neither_mlx_nor_the_hub():
    program = (
        "import sys; from pathlib import Path; from mlxd.registry import discovery, names;"
        "from mlxd.registry.model_kind import Architectures; Architectures().supports('mistral');"
        "sys.exit(any(m.split('.')[0] in ('mlx', 'mlx_lm', 'huggingface_hub', 'numpy') for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
