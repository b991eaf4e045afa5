"""Prompts that are too large: for what is free beside an idle model, and for all there is. Measured for real."""

from __future__ import annotations

import statistics
import time

import pytest
from daemon_process import Api, chat_body, daemon
from memory_daemon import MB, big_model, kinds, leave_room, wide_model
from tiny_models import place_models

NAMES = ("prompted", "idle")
# Tokens: about 67 MB of cache and 40 MB beside it while it is processed; and more than there is in all.
LARGE = "word " * 490
TOO_LARGE = "word " * 3000
MOST_SECONDS = 0.1


@pytest.fixture
async def running(tmp_path):
    """A daemon with both models in memory, and 30 MB left below the soft limit."""
    models = place_models(tmp_path / "models", {"prompted": wide_model(), "idle": big_model()})
    with daemon(tmp_path / "d", models) as started:
        async with Api(started.url) as api:
            for name in NAMES:
                await api.text(name, max_tokens=1)
            await leave_room(started, api, 30 * MB, 'ceiling = {}\nsoft = "100%"\n')
        yield started


async def test_a_prompt_without_room_beside_an_idle_model_is_served_after_that_has_left(running):
    async with Api(running.url) as api:
        status, answer = await api.call(
            "POST", "/v1/chat/completions", chat_body("prompted", LARGE), **{"X-Request-Id": "large"}
        )
        assert (status, answer["usage"]["prompt_tokens"] > 1450) == (200, True), answer
        assert await api.states() == {"prompted": "ready", "idle": "unloaded"}
        [evicted] = [d for d in (await api.get("/admin/decisions"))["data"] if d["kind"] == "evict"]
        told = {key: evicted[key] for key in ("model", "reason", "for_model", "for_request")}
        assert told == {"model": "idle", "reason": "prefill", "for_model": "prompted", "for_request": "large"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_too_large_for_all_there_is_is_refused_at_once_and_costs_nobody_anything(running, stream):
    async with Api(running.url) as api:
        before = await api.get("/admin/memory")
        seconds = []
        for _ in range(5):
            started = time.monotonic()
            async with api.post("/v1/chat/completions", chat_body("prompted", TOO_LARGE, stream=stream), {}) as refused:
                error = (await refused.json())["error"]
            seconds.append(time.monotonic() - started)
            assert (refused.status, error["code"]) == (507, "prefill_memory_exceeded"), error
            assert refused.headers["x-should-retry"] == "false"
            details = error["details"]
            assert details["estimated_bytes"] > details["limit_bytes"] > 0
            assert "memory.ceiling" in error["message"]
        print(f"refused in {[round(1000 * one) for one in seconds]} ms")  # noqa: T201
        assert statistics.median(seconds) < MOST_SECONDS
        assert await api.states() == {"prompted": "ready", "idle": "ready"}
        assert await kinds(api, "evict", "trim") == []
        assert len(await kinds(api, "refuse")) == 5
        after = await api.get("/admin/memory")
        assert after["parts"]["prefix_cache"] == before["parts"]["prefix_cache"] > 0
        assert await api.text("prompted")
