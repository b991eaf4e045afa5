"""Files of workers: what crosses in them, what an earlier daemon left, and disks that take nothing."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scripted_worker import FACTS

from mlxd.daemon.engine_hosts import EngineHosts
from mlxd.engines.errors import DiskFull
from mlxd.engines.prompt_images import ImageInput
from mlxd.engines.turns import Turns
from mlxd.engines.worker.calls import Answer
from mlxd.engines.worker.frames import to_bytes
from mlxd.engines.worker.remote_tokenizer import RemoteTokenizer
from mlxd.engines.worker.worker_settings import WorkerSettings
from mlxd.engines.worker.workers import Workers

TEXT = [{"role": "user", "content": "hello"}]
IMAGES = [{"role": "user", "content": [{"type": "image", "image": ImageInput(bytes(100_000), "x", 1)} for _ in "ab"]}]


class Answering:
    """Calls that a worker would answer; it looks at the files that it is given, and may fail then."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self.sizes: list[int] = []
        self.fails: Exception | None = None

    def make(self, method: str, *arguments: Any, files: Any = ()) -> Answer:
        self.files += files
        self.sizes += [file.stat().st_size for file in files]
        if self.fails is not None:
            raise self.fails
        return Answer(to_bytes([1, 2]))


def tokenizer(scratch: Path) -> tuple[RemoteTokenizer, Answering]:
    calls = Answering()
    return RemoteTokenizer(calls, FACTS, scratch), calls  # type: ignore[arg-type] - it only makes calls


def workers(folder: Path) -> Workers:
    return Workers(WorkerSettings(folder / "scratch", folder / "prefixes"), Turns())


def test_images_are_there_for_as_long_as_the_call_takes(tmp_path):
    its, calls = tokenizer(tmp_path)
    assert its.encode_prompt(IMAGES).tokens == [1, 2]
    assert calls.sizes == [100_000, 100_000]
    assert list(tmp_path.iterdir()) == []
    calls.fails = KeyError()
    with pytest.raises(KeyError):
        its.encode_prompt(IMAGES)
    assert list(tmp_path.iterdir()) == []


def test_text_needs_no_disk(tmp_path):
    its, calls = tokenizer(tmp_path / "nothing here")
    assert its.encode_prompt(TEXT).tokens == [1, 2]
    assert calls.files == []


def test_a_disk_that_takes_no_more_fails_the_request_and_keeps_nothing(tmp_path):
    its, calls = tokenizer(tmp_path)
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, limit[1]))
    try:
        with pytest.raises(DiskFull, match=f"through {tmp_path}.* File too large"):
            its.encode_prompt(IMAGES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert calls.files == []
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_daemon_left_is_removed(tmp_path):
    left = tmp_path / "scratch" / "tmp1" / "0"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"an image")
    workers(tmp_path).open()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_folder_may_be_elsewhere(tmp_path):
    elsewhere = tmp_path / "fast disk"
    (elsewhere / "left").mkdir(parents=True)
    (tmp_path / "scratch").symlink_to(elsewhere)
    workers(tmp_path).open()
    assert (tmp_path / "scratch").is_symlink()
    assert list(elsewhere.iterdir()) == []


def test_a_file_in_its_place_is_an_error_at_the_start(tmp_path):
    (tmp_path / "scratch").write_text("")
    with pytest.raises(OSError, match="scratch"):
        workers(tmp_path).open()


def test_prefixes_of_models_that_are_gone_are_removed_and_nothing_else_is(tmp_path):
    its = workers(tmp_path)
    its.forget_prefixes(["stays"])
    folders = {name: its._settings.prefix_folder(name) for name in ("stays", "goes")}
    for folder in folders.values():
        (folder / "identity").mkdir(parents=True)
    (tmp_path / "prefixes" / "mine").mkdir()
    its.forget_prefixes(["stays", "new"])
    assert folders["stays"].is_dir()
    assert sorted(path.name for path in (tmp_path / "prefixes").iterdir()) == sorted([folders["stays"].name, "mine"])


async def test_only_models_that_keep_prefixes_in_a_process_have_any_there(tmp_path):
    its = workers(tmp_path)
    kinds = {"here": ("process", "1GB"), "off": ("process", "off"), "thread": ("thread", "1GB")}
    for name in (*kinds, "gone"):
        its._settings.prefix_folder(name).mkdir(parents=True)
    live = SimpleNamespace(
        catalog=SimpleNamespace(specs=[SimpleNamespace(name=name) for name in kinds]),
        settings=SimpleNamespace(
            engine_for=lambda name: SimpleNamespace(isolation=kinds[name][0], prefix_cache_disk=kinds[name][1])
        ),
    )
    await EngineHosts(cast(Any, None), its).forget_prefixes(cast(Any, live))
    assert list((tmp_path / "prefixes").iterdir()) == [its._settings.prefix_folder("here")]
