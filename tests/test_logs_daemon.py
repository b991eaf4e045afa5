"""GET /admin/logs and `mlxd logs` of a real daemon, with what its workers log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from daemon_process import Api, daemon
from tiny_models import place_models

SECRET = "a prompt that nobody else may read"


@pytest.fixture(scope="module")
def served(tmp_path_factory, micro_model):
    folder = tmp_path_factory.mktemp("logs")
    models = place_models(folder / "models", {"m": micro_model, "apart": micro_model})
    config = '[log]\nlevel = "debug"\n[[model]]\nname = "apart"\nengine = { isolation = "process" }\n'
    with daemon(folder / "d", models, config) as running:
        yield running


@pytest.fixture
async def api(served):
    async with Api(served.url) as api:
        yield api


def mlxd(served, *arguments: str, **options):
    command = [sys.executable, "-m", "mlxd.daemon", *arguments, "--url", served.url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


async def lines(response):
    """Lines as they are streamed."""
    async for raw in response.content:
        if raw.startswith(b"data: "):
            yield json.loads(raw.removeprefix(b"data: "))


async def test_the_last_lines_are_told_with_their_fields(api):
    await api.text("m")
    answer = await api.get("/admin/logs?limit=5000")
    loaded = [line for line in answer["data"] if line["event"] == "model.loaded" and line["model"] == "m"]
    assert loaded[0]["level"] == "info"
    numbers = [line["seq"] for line in answer["data"]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len((await api.get("/admin/logs?limit=3"))["data"]) == 3
    warnings = (await api.get("/admin/logs?level=warning"))["data"]
    assert {line["level"] for line in warnings} <= {"warning", "error"}


async def test_lines_of_a_request_have_its_id_in_workers_too_and_nothing_of_its_prompt(api):
    for model in ("m", "apart"):
        body = {"model": model, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 4}
        status, _ = await api.call("POST", "/v1/chat/completions", body, **{"X-Request-Id": f"traced-{model}"})
        assert status == 200
        found = (await api.get("/admin/logs?limit=5000"))["data"]
        rooms = {line["logger"].split(".")[1] for line in found if line.get("request_id") == f"traced-{model}"}
        assert {"daemon", "engines"} <= rooms
    assert SECRET not in json.dumps(found)


async def test_prompts_and_answers_are_logged_where_that_is_wanted(tmp_path, micro_model):
    models = place_models(tmp_path / "models", {"m": micro_model})
    with daemon(tmp_path / "d", models, "[log]\nprompts = true\n") as running:
        async with Api(running.url) as api:
            text = await api.text("m", SECRET, max_tokens=5)
            await api.call("POST", "/v1/completions", {"model": "m", "prompt": f"raw {SECRET}", "max_tokens": 2})
            found = (await api.get("/admin/logs"))["data"]
    asked = [line["prompt"] for line in found if line["event"] == "request.prompt"]
    assert json.loads(asked[0]) == [{"role": "user", "content": SECRET}]
    assert asked[1] == f"raw {SECRET}"
    assert next(line["answer"] for line in found if line["event"] == "request.answer") == text


async def test_lines_are_streamed_as_they_come_and_after_a_break_none_is_missed(api):
    last = (await api.get("/admin/logs?limit=1"))["data"][-1]["seq"]
    async with api._session.get(f"/admin/logs?follow=true&since={last}&level=info") as response:
        assert response.content_type == "text/event-stream"
        await api.call("POST", "/admin/abort")
        async with asyncio.timeout(10):
            async for line in lines(response):
                if line["event"] == "http.request" and line["path"] == "/admin/abort":
                    break
    async with api._session.get("/admin/logs?follow=true", headers={"Last-Event-ID": str(last)}) as response:
        async with asyncio.timeout(10):
            assert (await anext(lines(response)))["seq"] == last + 1


REFUSED = [
    ("limit=0", "limit"),
    ("limit=x", "limit"),
    ("limit=0000005000000", "limit"),
    (f"limit=000000500{'0' * 5000}", "limit"),
    ("level=loud", "level"),
    ("follow=yes", "follow"),
    ("since=null", "since"),
]


@pytest.mark.parametrize(("query", "param"), REFUSED)
async def test_what_is_no_query_is_refused(api, query, param):
    status, answer = await api.call("GET", f"/admin/logs?{query}")
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_stream_that_is_read_by_nobody_is_left_behind(api):
    before = len((await api.get("/admin/logs?limit=5000"))["data"])
    async with api._session.get("/admin/logs?follow=true"):
        for _ in range(20):
            await api.get("/admin/logs?limit=5000")
    assert len((await api.get("/admin/logs?limit=5000"))["data"]) >= before


def test_the_command_shows_lines_and_json(served):
    process = mlxd(served, "logs", "-n", "5000")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert any("daemon.ready" in line and "models=2" in line for line in out.splitlines())
    out, _ = mlxd(served, "logs", "--json", "-n", "2").communicate(timeout=30)
    assert len([json.loads(line) for line in out.splitlines()]) == 2


async def test_what_is_logged_makes_no_line_of_its_own(served, api):
    await api.call("POST", "/nothing%0Aforged%20here")
    out, _ = mlxd(served, "logs", "-n", "50").communicate(timeout=30)
    assert "forged here" in out
    assert not any(line.startswith("forged") for line in out.splitlines())
    await api.call("POST", "/nothing%0Aforged")
    out, _ = mlxd(served, "logs", "-n", "50").communicate(timeout=30)
    assert not any(line.startswith("forged") for line in out.splitlines())


async def test_the_command_follows_until_ctrl_c(served, api):
    process = mlxd(served, "logs", "--follow", "-n", "1", "--json")
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    await api.call("POST", "/admin/models/m/unload", {})
    async with asyncio.timeout(20):
        while json.loads(await asyncio.to_thread(process.stdout.readline))["event"] != "model.unloaded":
            pass
    os.kill(process.pid, signal.SIGINT)
    assert await asyncio.to_thread(process.wait, 20) == 0


async def test_the_log_of_a_daemon_that_stops_is_streamed_to_its_end(tmp_path, micro_model):
    models = place_models(tmp_path / "models", {"m": micro_model})
    with daemon(tmp_path / "d", models) as running:
        async with Api(running.url) as api, api._session.get("/admin/logs?follow=true") as response:
            running.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                seen = [line["event"] async for line in lines(response)]
            assert await asyncio.to_thread(running.process.wait, 20) == 0
    assert "daemon.stopping" in seen


async def test_keys_are_listed_without_their_secrets(tmp_path, micro_model):
    models = place_models(tmp_path / "models", {"m": micro_model})
    with daemon(tmp_path / "d", models) as running:
        async with Api(running.url) as api:
            assert await api.get("/admin/keys") == {"data": []}
