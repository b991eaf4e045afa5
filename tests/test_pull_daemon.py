"""A real daemon downloads models from a hub: whole or not at all, on from where it was, and served at once."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys

import psutil
import pytest
from daemon_process import Api
from hub_server import COMMIT, Repo, files_in, hub_server
from pulling import CONFIG, begin, children, ended, pulled, pulling, until

WEIGHTS = "model.safetensors"
WITHOUT_MLX = CONFIG + '[engine]\nisolation = "process"\n'
KB = 1 << 10
HELD = 128 * KB
"""Bytes of the weights that come before a hold."""


@pytest.fixture(scope="module")
def shared(micro_model, tmp_path_factory):
    """A hub, and a daemon that several tests use: each has a repository of its own."""
    folder = tmp_path_factory.mktemp("pulls")
    with hub_server() as hub, pulling(folder, hub) as running:
        yield hub, running, folder / "models"


@pytest.fixture
def hub(shared, micro_model, request):
    hub = shared[0]
    hub.forget()
    hub.repo = f"org/{request.node.name.removeprefix('test_')[:40].rstrip('_')}"
    hub.repos[hub.repo] = Repo({**files_in(micro_model), "README.md": b"x", "pytorch_model.bin": b"y" * 20_000})
    return hub


@pytest.fixture
def running(shared):
    return shared[1]


@pytest.fixture
async def api(running):
    async with Api(running.url) as api:
        yield api


def partial_files(models):
    return sorted(path.name for path in (models / ".mlxd").rglob("*") if path.is_file())


async def held_half_way(api, hub, **body):
    """A pull that has got a part of its weights, and the hold that keeps it there."""
    hold = hub.hold(WEIGHTS, HELD)
    pull = await begin(api, hub.repo, **body)
    assert await asyncio.to_thread(hold.reached.wait, 20)
    return await until(api, pull["id"], lambda pull: pull["bytes_done"] >= HELD), hold


def ranges(hub):
    """What was asked for of the weights, request by request."""
    return [wanted for name, wanted in hub.asked if name == WEIGHTS]


async def test_a_pulled_model_answers_at_once(hub, running, api, shared, micro_model):
    pull = await begin(api, hub.repo, revision="main")
    assert (pull["name"], pull["commit"], pull["ended_at"]) == (hub.repo, None, None)
    pull = await ended(api, pull["id"])
    assert (pull["state"], pull["commit"], pull["error"]) == ("done", COMMIT, None)
    assert await api.text(hub.repo)
    assert pull["bytes_done"] == pull["bytes_total"] == sum(map(len, files_in(micro_model).values()))
    there = {name: content for name, content in files_in(shared[2] / hub.repo).items() if not name.startswith(".")}
    assert there == files_in(micro_model)
    said = [event["event"] for event in running.events() if event.get("n") == pull["id"]]
    assert said == ["pull.started", "pull.finished"]
    assert "hf_secret" not in running.log.read_text() + str(await api.get("/admin/pulls"))
    assert "Unknown child process" not in running.log.read_text()
    assert (hub.tokens, hub.tokens_elsewhere) == ({"Bearer hf_secret"}, {None})
    assert not [name for name in partial_files(shared[2]) if name.endswith(WEIGHTS)]


async def test_a_killed_download_goes_on_from_its_bytes(hub, running, api):
    pull, hold = await held_half_way(api, hub)
    [child] = children(running)
    child.send_signal(signal.SIGKILL)
    failed = await ended(api, pull["id"])
    assert (failed["state"], failed["error"]["reason"]) == ("failed", "crashed")
    assert "SIGKILL" in failed["error"]["message"]
    assert hub.repo not in await api.states()
    hold.released.set()
    assert (await pulled(api, hub.repo))["state"] == "done"
    assert ranges(hub) == [None, f"bytes={HELD}-"]
    assert [name for name, _ in hub.asked].count("config.json") == 1
    assert hub.repo in await api.states()


async def test_a_cancelled_download_is_kept_and_goes_on(hub, running, api, shared):
    pull, hold = await held_half_way(api, hub)
    status, cancelled = await api.call("DELETE", f"/admin/pulls/{pull['id']}")
    assert (status, cancelled["state"]) == (200, "cancelled")
    assert children(running) == []
    assert f"{WEIGHTS}.part" in partial_files(shared[2])
    assert (await api.call("DELETE", f"/admin/pulls/{pull['id']}"))[1] == cancelled
    for unknown in ("70000", "0", "x", "9" * 30):
        status, error = await api.call("DELETE", f"/admin/pulls/{unknown}")
        assert (status, error["error"]["code"]) == (404, "pull_not_found")
    hold.released.set()
    assert (await pulled(api, hub.repo))["state"] == "done"
    assert ranges(hub) == [None, f"bytes={HELD}-"]


async def test_two_pulls_of_the_same_share_one_and_of_one_repository_take_turns(hub, running, api):
    pull, hold = await held_half_way(api, hub)
    status, shared = await api.call("POST", "/admin/pull", {"repo": hub.repo, "revision": "main"})
    assert (status, shared["id"]) == (200, pull["id"])
    second = await begin(api, hub.repo, name="second")
    assert second["state"] == "queued"
    assert len(children(running)) == 1
    hold.released.set()
    assert (await ended(api, second["id"]))["state"] == "done"
    assert {hub.repo, "second"} <= (await api.states()).keys()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
async def test_a_disk_that_gets_full_is_said_and_nothing_is_lost(hub, running, api):
    pull, hold = await held_half_way(api, hub)
    [child] = children(running)
    # a file may not grow any more: what a full disk is to whoever writes
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (160 * KB, 160 * KB))
    hold.released.set()
    failed = await ended(api, pull["id"])
    assert (failed["state"], failed["error"]["reason"]) == ("failed", "disk_full")
    assert "make room" in failed["error"]["message"]
    assert (await pulled(api, hub.repo))["state"] == "done"
    [_, again] = ranges(hub)
    assert int(again.removeprefix("bytes=").removesuffix("-")) >= HELD


async def test_a_download_outlives_no_daemon_however_that_ends_but_its_bytes_do(tmp_path, hub):
    with pulling(tmp_path, hub, WITHOUT_MLX, exit_code=None) as first:
        async with Api(first.url) as api:
            _, hold = await held_half_way(api, hub)
        orphans = children(first)
        assert len(orphans) == 1
        first.stop(signal.SIGKILL)
        gone, alive = psutil.wait_procs(orphans, timeout=10)
        assert (len(gone), alive) == (1, [])
    hold.released.set()
    with pulling(tmp_path, hub, WITHOUT_MLX) as running:
        async with Api(running.url) as api:
            assert await api.states() == {}
            assert (await api.get("/admin/pulls"))["data"] == []
            assert (await pulled(api, hub.repo))["state"] == "done"
            assert hub.asked[-1] == (WEIGHTS, f"bytes={HELD}-")
            await held_half_way(api, hub, name="again")
        [child] = children(running)
    assert not psutil.pid_exists(child.pid)
    ends = {event["event"]: event for event in running.events()}
    assert ends["daemon.stopped"]["clean"] is True
    assert "pull.cancelled" in ends
    assert "models.note" not in ends


async def test_a_model_that_cannot_be_served_says_so_and_can_be_deleted(hub, api):
    hub.repos[hub.repo].files = {**hub.repos[hub.repo].files, "config.json": b"{"}
    assert (await pulled(api, hub.repo))["state"] == "done"
    status, refused = await api.chat(hub.repo)
    assert (status, refused["error"]["details"]["reason"]) == (503, "bad_files")
    assert (await api.call("DELETE", f"/admin/models/{hub.repo}"))[0] == 200
    assert hub.repo not in await api.states()


async def test_bad_names_are_refused_with_their_field(hub, api):
    for body, param in (
        ({}, "repo"),
        ({"repo": "../x"}, "repo"),
        ({"repo": "/etc/passwd"}, "repo"),
        ({"repo": "a/b/c"}, "repo"),
        ({"repo": "https://huggingface.co/a/b"}, "repo"),
        ({"repo": "a" * 5000}, "repo"),
        ({"repo": "a--b/c"}, "repo"),
        ({"repo": hub.repo, "name": "../x"}, "name"),
        ({"repo": hub.repo, "name": "/x"}, "name"),
        ({"repo": hub.repo, "name": ".x"}, "name"),
        ({"repo": hub.repo, "name": "a/b/c"}, "name"),
        ({"repo": hub.repo, "name": ""}, "name"),
        ({"repo": hub.repo, "revision": "../../x"}, "revision"),
        ({"repo": hub.repo, "revision": "a b"}, "revision"),
        ({"repo": hub.repo, "force": True}, "force"),
    ):
        status, error = await api.call("POST", "/admin/pull", body)
        assert (status, error["error"]["code"], error["error"]["param"]) == (400, "invalid_request", param)
    assert hub.listed == 0


async def test_the_feed_tells_of_a_download(hub, api):
    async with api.get_stream("/admin/events") as stream:
        seen, awaited = [], {"done", hub.repo}
        while awaited:
            text = (await asyncio.wait_for(stream.content.readline(), 20)).decode()
            assert text
            if text.startswith("data: "):
                seen.append(json.loads(text.removeprefix("data: ")))
                awaited.discard(seen[-1].get("pull", {}).get("state"))
                awaited.discard(seen[-1].get("model", {}).get("id"))
            if len(seen) == 1:
                await begin(api, hub.repo)
                seen.append({})
    assert {pull["state"] for pull in seen[0]["pulls"]} <= {"done", "failed", "cancelled"}
    states = [event["pull"]["state"] for event in seen if "pull" in event]
    assert (states[0], states[-1]) == ("queued", "done")
