"""A download, without a daemon: what it takes, what it refuses, and how its process ends."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import psutil
import pytest
from hub_server import COMMIT, Repo, files_in, hub_server
from huggingface_hub import constants
from pulling import is_download

from mlxd.daemon.downloads.child import child
from mlxd.daemon.downloads.messages import Done, Failed, Found, Job, Progress
from mlxd.daemon.downloads.places import HIDDEN
from mlxd.daemon.downloads.selection import HubFile
from mlxd.daemon.downloads.teller import Teller
from mlxd.daemon.downloads.work import download

MB = 1 << 20
WEIGHTS, REPO = "model.safetensors", "org/tiny"
GATED = (403, {"X-Error-Code": "GatedRepo"})


@pytest.fixture
def hub(micro_model, monkeypatch, tmp_path):
    """A hub for processes of downloads, and for downloads in this one."""
    with hub_server() as hub:
        hub.repos[REPO] = Repo(files_in(micro_model))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


@pytest.fixture
def job(tmp_path):
    def job(repo=REPO, revision="main", name=None, stall_s=20.0):
        return Job(repo, revision, name or repo, str(tmp_path / "models"), stall_s)

    return job


def process():
    """The one of a download: other tests in this process may have children too."""
    [found] = [each for each in psutil.Process().children() if is_download(each)]
    return found


async def messages(job, **options):
    async with child(job, **options) as messages:
        return [message async for message in messages]


async def last(job):
    """The last word of a download in this process."""
    [word] = await lasts(job)
    return word


async def lasts(*jobs):
    said = [[] for _ in jobs]
    for job, words in zip(jobs, said, strict=True):
        await asyncio.to_thread(download, job, words.append)
    return [words[-1] for words in said]


async def test_only_what_a_model_needs_is_downloaded(hub, job, tmp_path):
    needed = dict(hub.repos[REPO].files)
    hub.repos[REPO].files = {**needed, "README.md": b"x", "onnx/model.onnx": b"x", "original/x.safetensors": b"x"}
    found, *_, end = await messages(job())
    assert found == Found(COMMIT, 0, len(needed), 0, sum(map(len, needed.values())), found.free_bytes)
    assert found.free_bytes > 0
    assert end == Done()
    assert {name for name, _ in hub.asked} == needed.keys()
    there = files_in(tmp_path / "models" / REPO)
    assert {name: content for name, content in there.items() if not name.startswith(".")} == needed
    assert await messages(job()) == [
        Found(COMMIT, len(needed), len(needed), found.bytes_total, found.bytes_total),
        Done(),
    ]


async def test_what_is_there_is_not_downloaded_again_and_something_else_stays(hub, job):
    assert await lasts(job(), job()) == [Done(), Done()]
    assert hub.sent[WEIGHTS] == len(hub.repos[REPO].files[WEIGHTS])
    hub.repos[REPO].commit = "b" * 40
    taken = await last(job())
    assert (taken.reason, "mlxd rm" in taken.message) == ("exists", True)


async def test_a_wrong_checksum_is_caught(hub, job, tmp_path):
    for wrong in (WEIGHTS, "config.json"):  # one by its SHA-256, one by that of its git blob
        hub.repos[REPO].corrupt = {wrong}
        failed = await last(job())
        assert (failed.reason, failed.message.partition(" ")[0]) == ("bad_checksum", wrong)
        assert not (tmp_path / "models" / REPO).exists()
        assert not [path for path in (tmp_path / "models").rglob("*") if path.name.startswith(wrong)]
        shutil.rmtree(tmp_path / "models" / HIDDEN)
    hub.repos[REPO].corrupt = set()
    assert await last(job()) == Done()


async def test_what_an_index_does_not_name_stays_out(hub, job, tmp_path):
    files = dict(hub.repos[REPO].files)
    weights = files.pop(WEIGHTS)
    shards = {"model-00001-of-00002.safetensors": weights, "model-00002-of-00002.safetensors": weights + b"x"}
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    hub.repos[REPO].files = {**files, **shards, WEIGHTS: weights, "model.safetensors.index.json": index}
    assert await last(job()) == Done()
    assert hub.sent[WEIGHTS] == 0
    assert shards.keys() < files_in(tmp_path / "models" / REPO).keys()


async def test_what_the_hub_refuses_is_said_plainly(hub, job):
    files = hub.repos[REPO].files
    too_large = {"lfs": {"sha256": "a" * 64, "size": 1 << 49, "pointerSize": 1}}
    hub.repos |= {
        "org/gated": Repo(files, files_refused=GATED),
        "org/closed": Repo(files, listing_refused=GATED),
        "org/busy": Repo(files, listing_refused=(429, {"Retry-After": "120"})),
        "org/ill": Repo(files, listing_refused=(500, {})),
        "org/verbose": Repo(files, listing_refused=(500, {}), endless=True),
        "org/long": Repo(files, listing_refused=(429, {"Retry-After": "9" * 5000})),
        "org/denied": Repo(files, files_refused=(403, {})),
        "org/lacking": Repo(files, files_refused=(404, {"X-Error-Code": "EntryNotFound"})),
        "org/gguf": Repo({"model.gguf": b"x", "config.json": b"{}"}),
        "org/vast": Repo(files, declared={WEIGHTS: too_large}),
    }
    expected = {
        "org/nothing": ("repo_not_found", "check the name"),
        "org/gated": ("gated", f"accept its terms at {hub.url}/org/gated"),
        "org/closed": ("gated", f"accept its terms at {hub.url}/org/closed"),
        REPO: ("revision_not_found", "no revision v9"),
        "org/busy": ("rate_limited", "in 120 seconds"),
        "org/ill": ("hub_error", "500"),
        "org/verbose": ("hub_error", "500"),
        "org/long": ("rate_limited", "pull again later"),
        "org/denied": ("forbidden", "HF_TOKEN"),
        "org/lacking": ("hub_error", "does not have"),
        "org/gguf": ("unsupported", "mlxd import FILE.gguf"),
        "org/vast": ("no_space", "make room"),
    }
    said = await lasts(*(job(repo, "v9" if repo == REPO else "main") for repo in expected))
    for (reason, words), failed in zip(expected.values(), said, strict=True):
        assert (failed.reason, words in failed.message) == (reason, True), failed
        assert "hf_secret" not in failed.message
    assert said[-1].needed_bytes > 1 << 49 > said[-1].free_bytes > 0
    assert hub.sent[WEIGHTS] == 0


async def test_who_has_no_token_is_told_to_get_one(hub, job, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    hub.repos |= {
        "org/gated": Repo(hub.repos[REPO].files, files_refused=GATED),
        "org/private": Repo(hub.repos[REPO].files, listing_refused=(401, {})),
    }
    gated, private = await lasts(job("org/gated"), job("org/private"))
    assert (gated.reason, private.reason) == ("gated", "repo_not_found")
    assert "a token of that account in HF_TOKEN" in gated.message
    assert "with a token in HF_TOKEN that may read it" in private.message
    token = Path(os.environ["HF_HOME"]) / "token"
    token.parent.mkdir(exist_ok=True)
    token.write_text("hf_filed\n")
    assert await last(job()) == Done()
    assert hub.tokens == {None, "Bearer hf_filed"}


async def test_without_a_network_it_says_so(hub, job, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert (await last(job())).reason == "offline"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:secret@127.0.0.1:1")
    failed = await last(job())
    assert (failed.reason, "http://127.0.0.1:1" in failed.message) == ("unreachable", True)
    assert "secret" not in failed.message


async def test_a_token_that_cannot_be_sent_is_not_repeated(hub, job, monkeypatch):
    for token in ("hf_secret…", "hf_sec\x01ret", "hf_sec ret"):
        monkeypatch.setenv("HF_TOKEN", token)
        failed = await last(job())
        assert (failed.reason, "hf_sec" in failed.message) == ("forbidden", False)
    assert hub.listed == 0


async def test_a_hostile_repository_harms_nothing(hub, job, tmp_path):
    files = hub.repos[REPO].files
    names = (
        "../outside.json",
        "/tmp/outside.json",
        "1_Pooling/../../outside.json",
        "outside" * 800 + ".json",
        ".x.json",
    )
    index = b'{"weight_map": {"a": "../../outside.safetensors", "b": "model.safetensors"}}'
    hub.repos |= {
        "org/names": Repo({**files, **dict.fromkeys(names, b"{}"), "evil.py": b"x"}),
        "org/many": Repo({**files, **{f"{n}.json": b"{}" for n in range(2000)}}),
        "org/short": Repo(files, declared={"config.json": {"size": 3}}),
        "org/long": Repo(files, declared={"config.json": {"size": 10**6}}),
        "org/none": Repo(files, declared={"config.json": {"size": None, "blobId": None}}),
        "org/odd": Repo(files, declared={"config.json": {"size": "many", "lfs": {}}}),
        "org/index": Repo({**files, "model.safetensors.index.json": index}),
        "org/commit": Repo(files, commit="../../outside"),
        "org/endless": Repo(files, endless=True),
        "org/packed": Repo(files, packed=True),
    }
    said = await lasts(*(job(repo, stall_s=2.0) for repo in hub.repos if repo != REPO))
    assert [None if word == Done() else word.reason for word in said] == [
        None, "bad_repository", "bad_checksum", "bad_checksum", "hub_error", "hub_error", "bad_repository", "hub_error",
        "bad_repository", None,
    ]  # fmt: skip
    assert [path for path in tmp_path.rglob("*") if "outside" in path.name or path.suffix == ".py"] == []
    assert sorted(path.name for path in (tmp_path / "models" / "org").iterdir()) == ["names", "packed"]


@pytest.mark.soak
async def test_a_repository_of_100000_files_is_refused(hub, job):
    hub.repos["org/many"] = Repo({**hub.repos[REPO].files, **{f"{n}.json": b"{}" for n in range(100_000)}})
    hub.repos["org/more"] = Repo({**hub.repos[REPO].files, **{f"{n}.txt": b"{}" for n in range(100_000)}})
    refused, done = await lasts(job("org/many"), job("org/more"))
    assert (refused.reason, done) == ("bad_repository", Done())


async def test_a_connection_that_breaks_is_made_again(hub, job, tmp_path):
    hub.breaks[WEIGHTS] = MB // 8
    assert await last(job()) == Done()
    assert hub.asked[-2:] == [(WEIGHTS, None), (WEIGHTS, f"bytes={MB // 8}-")]
    hub.repos[REPO].ranges = False
    hub.breaks[WEIGHTS] = MB // 8
    assert await last(job(name="whole")) == Done()
    assert files_in(tmp_path / "models" / "whole") == files_in(tmp_path / "models" / REPO)


async def test_a_server_without_ranges_that_always_breaks_off_is_given_up(hub, job):
    hub.repos[REPO].ranges = False
    hub.always_breaks[WEIGHTS] = MB // 8
    assert (await last(job(stall_s=1.0))).reason == "stalled"
    assert len([name for name, _ in hub.asked if name == WEIGHTS]) < 10


async def test_a_hub_that_falls_silent_is_given_up(hub, job):
    hold = hub.hold(WEIGHTS, MB // 8)
    failed = await last(job(stall_s=0.5))
    assert (failed.reason, "goes on from there" in failed.message) == ("stalled", True)
    hold.released.set()
    assert await last(job()) == Done()
    assert hub.asked[-1] == (WEIGHTS, f"bytes={MB // 8}-")


async def test_two_processes_do_not_write_the_same_files(hub, job):
    hold = hub.hold(WEIGHTS, MB // 8)
    async with child(job()) as first:
        assert isinstance(await anext(first), Found)
        assert await asyncio.to_thread(hold.reached.wait, 20)
        assert (await last(job(name="second"))).reason == "busy"
        hold.released.set()
        assert [message async for message in first][-1] == Done()


async def test_a_process_that_stands_still_is_ended(hub, job):
    hold = hub.hold(WEIGHTS, MB // 8)
    async with child(job(), silence=2.0) as received:
        assert isinstance(await anext(received), Found)
        stopped = process()
        stopped.send_signal(signal.SIGSTOP)
        assert [message.reason async for message in received if isinstance(message, Failed)] == ["stalled"]
    assert not psutil.pid_exists(stopped.pid)
    hold.released.set()


def test_a_process_ends_with_its_input_and_by_no_other_signal(hub, job):
    hold = hub.hold(WEIGHTS, MB // 8)
    command = [sys.executable, "-I", "-m", "mlxd.daemon.downloads", str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as orphan:
        orphan.stdin.write(msgspec.json.encode(job()) + b"\n")
        orphan.stdin.flush()
        assert hold.reached.wait(20)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            orphan.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            orphan.wait(0.2)
        orphan.stdin.close()
        assert orphan.wait(10) == 3
    hold.released.set()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second disk")
async def test_a_place_on_another_disk_is_refused_before_anything_comes(hub, job, tmp_path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "org").symlink_to(elsewhere)
        failed = await last(job())
    assert (failed.reason, "on another disk" in failed.message) == ("disk_error", True)
    assert hub.asked == []


def test_a_disk_that_hangs_gives_no_sign_of_life(tmp_path):
    file, said = HubFile("config.json", 10, blob_sha1="a" * 40), queue.Queue()
    teller = Teller(tmp_path, [file], said.put, interval=0.01, life_sign=0.0)
    with teller:
        for _ in range(3):
            teller.of(file)(5, True)
            assert said.get(timeout=10) == Progress(0, 0, True)
        with pytest.raises(queue.Empty):
            said.get(timeout=0.2)


async def test_a_place_that_is_taken_stays_as_it_is(hub, job, tmp_path):
    models = tmp_path / "models"
    (models / "org").mkdir(parents=True)
    (models / "org" / "config.json").write_text("{}")
    (models / "mine").write_text("mine")
    within, taken = await lasts(job(), job(name="mine"))
    assert (within.reason, taken.reason) == ("exists", "exists")
    assert (models / "mine").read_text() == "mine"
    assert not (models / HIDDEN).exists()
