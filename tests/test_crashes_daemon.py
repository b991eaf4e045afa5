"""Models whose processes are killed under a real daemon: what becomes of their requests, and what is told of it."""

import os
import signal

import pytest
from daemon_process import Api, chat_body, daemon
from tiny_models import place_models

ISOLATED = {"MLXD_ENGINE__ISOLATION": "process"}
# A model backs off for this long after its second death.
BACKOFF = '[residency]\nretry_backoff = "1s"\n'


@pytest.fixture(scope="module")
def served(tmp_path_factory, micro_model):
    folder = tmp_path_factory.mktemp("crashes")
    models = place_models(folder / "models", {"m": micro_model, "other": micro_model})
    with daemon(folder / "d", models, BACKOFF, environ=ISOLATED) as running:
        yield running


async def kill(api: Api, model: str) -> None:
    """End the model's process as the system does when it runs out of memory."""
    shown = await api.get(f"/admin/models/{model}")
    os.kill(shown["pid"], signal.SIGKILL)
    await api.until(f"/admin/models/{model}", lambda shown: shown["state"] == "failed")


async def test_a_model_serves_again_after_its_first_death_and_backs_off_after_the_second(served):
    async with Api(served.url) as api:
        before = await api.text("m")
        await kill(api, "m")
        assert await api.text("m") == before
        await kill(api, "m")
        status, answer = await api.call("POST", "/v1/chat/completions", chat_body("m", "hello"))
        error = answer["error"]
        assert (status, error["code"], error["details"]["reason"]) == (503, "model_load_failed", "crashed")
        assert "killed by SIGKILL; died 2 times in a row" in error["message"]
        shown = await api.get("/admin/models/m")
        assert shown["error"] == {**error["details"], "retry_at": shown["error"]["retry_at"]}
        await api.until("/admin/explain/m", lambda plan: plan["verdict"] == "loads")
        assert await api.text("m") == before
        decisions = (await api.get("/admin/decisions?limit=1000"))["data"]
        restarts = [one for one in decisions if one["kind"] == "restart" and one["model"] == "m"]
        assert [one["inputs"]["deaths"] for one in restarts] == [1, 2]
        assert {one["inputs"]["facts"]["signal"] for one in restarts} == {"SIGKILL"}
        async with api._session.get("/metrics") as metrics:
            assert 'mlxd_worker_restarts_total{model="m"} 2.0' in await metrics.text()


async def test_a_pinned_model_is_back_without_being_asked_for(served):
    async with Api(served.url) as api:
        await api.call("POST", "/admin/models/other/load", {"pin": True})
        shown = await api.get("/admin/models/other")
        os.kill(shown["pid"], signal.SIGKILL)
        back = await api.until(
            "/admin/models/other", lambda now: now["state"] == "ready" and now["pid"] != shown["pid"]
        )
        assert back["error"] is None
