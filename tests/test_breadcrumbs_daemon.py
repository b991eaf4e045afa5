"""A real daemon that is killed in the middle, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal

from crumbs import asking
from daemon_faults import hold_load
from daemon_process import Api, daemon

from mlxd.engines.fingerprint import fingerprint

PRELOAD = '[models]\npreload = ["slow"]\n'


def record(folder):
    return json.loads((folder / "state" / "breadcrumbs.json").read_text())


def skipped(running):
    return [line for line in running.events() if line["event"] == "preload.skipped"]


async def test_a_model_that_was_loading_when_the_daemon_was_killed_is_not_preloaded_and_serves_whoever_asks(
    tmp_path, models_dir, micro_model
):
    models, folder = models_dir({"slow": micro_model}), tmp_path / "d"
    held = hold_load(models / "slow")
    with daemon(folder, models, PRELOAD, exit_code=None) as running:
        os.close(await asyncio.to_thread(os.open, held, os.O_WRONLY))  # when its load is there
        assert record(folder)["loading"] == ["slow"]
        running.stop(signal.SIGKILL)
    held.unlink()
    held.write_text("{}")
    with daemon(folder, models, PRELOAD) as running:
        async with Api(running.url) as api:
            decisions = await api.until("/admin/decisions", lambda answer: answer["data"])
            [decision] = decisions["data"]
            assert (decision["kind"], decision["model"], decision["reason"]) == ("refuse", "slow", "unclean_end")
            assert decision["inputs"]["was"] == "loading"
            assert decision["inputs"]["machine_restarted"] is False
            assert await api.states() == {"slow": "unloaded"}
            assert await api.text("slow")
        assert [line["model"] for line in skipped(running)] == ["slow"]
    left = record(folder)
    assert (left["ended"], left["loading"], left["suspects"]) == (True, [], {})


async def test_what_was_in_memory_comes_back_but_not_what_was_at_work_when_the_machine_went_down(
    tmp_path, models_dir, micro_model, tiny_model
):
    models, folder = models_dir({"alpha": micro_model, "beta": tiny_model}), tmp_path / "d"
    config = "[models]\nrestore = true\n"
    with daemon(folder, models, config, exit_code=None) as running:
        async with Api(running.url) as api:
            messages = [{"role": "user", "content": "go on"}]
            _, tokens = await api.call("POST", "/v1/tokenize", {"model": "beta", "messages": messages})
            await api.call("POST", "/admin/models/alpha/load", {})
            async with api.stream("beta", "go on", max_tokens=2000) as answer:
                await answer.content.readline()
                left = record(folder)
                running.stop(signal.SIGKILL)
    prompt = fingerprint(asking(*tokens["tokens"]))
    assert left["at_work"]["beta"] == [prompt]
    assert [model["name"] for model in left["resident"]] == ["beta", "alpha"]

    with daemon(folder, models, config) as running:
        async with Api(running.url) as api:
            await api.until("/admin/models/alpha", lambda model: model["state"] == "ready")
            decisions = (await api.get("/admin/decisions"))["data"]
            restored = [decision["model"] for decision in decisions if decision["reason"] == "restored"]
            assert restored == ["beta", "alpha"]
        assert skipped(running) == []

    (folder / "state" / "breadcrumbs.json").write_text(json.dumps({**left, "boot": "another"}))
    with daemon(folder, models, config) as running:
        async with Api(running.url) as api:
            await api.until("/admin/models/alpha", lambda model: model["state"] == "ready")
            assert await api.states() == {"alpha": "ready", "beta": "unloaded"}
        [told] = skipped(running)
        assert (told["model"], told["was"], told["machine_restarted"]) == ("beta", "at_work", True)
        assert told["fingerprints"] == [prompt]
