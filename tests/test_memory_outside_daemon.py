"""Others need memory: a real daemon gives up what is idle, keeps what runs, and comes back."""

from __future__ import annotations

import asyncio
import json

import pytest
from daemon_process import Api, daemon

MB = 1_000_000
GIB = 1 << 30
CONFIG = '[memory]\nceiling = "700MB"\nsoft = "600MB"\npoll_interval = "50ms"\n'
# of a machine so big that the margin for others is 1 GiB
CALM = {"machine_total": 64 * GIB, "machine_available": 32 * GIB, "strain": "none", "cgroup_available": None}
SHORT = {**CALM, "machine_available": GIB - 50 * MB}
CRITICAL = {**CALM, "strain": "critical"}
FULL_GROUP = {**CALM, "cgroup_limit": 1600 * MB, "cgroup_available": 70 * MB}


def script(folder, **told):
    """A probe file that says so; the footprint is 350 MB whatever the daemon uses."""
    file = folder / "probe.json"
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"bytes": 350 * MB, "mlx_active": 0, "mlx_cache": 0, **told}))
    new.replace(file)
    return {"MLXD_TEST_PROBE": str(file)}


@pytest.mark.parametrize(
    ("told", "outside"),
    [
        (SHORT, (300 * MB, "machine available")),
        (FULL_GROUP, (320 * MB, "cgroup available")),
        (CRITICAL, (315 * MB, "memory pressure (the probe file says critical)")),
    ],
)
async def test_idle_models_leave_when_others_need_the_memory_and_running_requests_stay(
    tmp_path, models_dir, tiny_model, told, outside
):
    soft, reason = outside
    models = models_dir({"busy": tiny_model, "idle": tiny_model})
    with daemon(tmp_path / "d", models, CONFIG, environ=script(tmp_path, **CALM)) as running:
        async with Api(running.url) as api:
            await api.text("idle")
            request = asyncio.create_task(api.chat("busy", max_tokens=30000))
            await api.until("/admin/models/busy", lambda model: (model["engine"] or {}).get("running") == 1)
            calm = await api.get("/admin/memory")
            assert (calm["soft_bytes"], calm["outside"]) == (600 * MB, {"level": "none", "reason": ""})
            script(tmp_path, **told)
            await api.until("/admin/models/idle", lambda model: model["state"] == "unloaded")
            memory = await api.get("/admin/memory")
            assert memory["outside"] == {"level": told["strain"], "reason": reason}
            assert memory["soft_bytes"] <= soft
            assert (memory["ceiling_bytes"], memory["pressure"]) == (700 * MB, "soft")
            assert not request.done()
            request.cancel()
            decisions = (await api.get("/admin/decisions"))["data"]
            assert [(d["model"], d["reason"]) for d in decisions if d["kind"] == "evict"] == [("idle", "memory_soft")]
            assert not [d for d in decisions if d["kind"] == "abort"]
    [logged] = [event for event in running.events() if event["event"] == "memory.outside"][:1]
    assert (logged["configured"], logged["reason"]) == (600 * MB, reason)


async def test_a_load_waits_for_others_to_be_done_and_is_not_refused(tmp_path, models_dir, micro_model):
    models = models_dir({"alpha": micro_model})
    with daemon(tmp_path / "d", models, CONFIG, environ=script(tmp_path, **SHORT)) as running:
        async with Api(running.url) as api:
            await api.until("/admin/memory", lambda memory: memory["outside"]["reason"] == "machine available")
            request = asyncio.create_task(api.chat("alpha"))
            await api.until("/admin/models/alpha", lambda model: model["queued"] == 1)
            script(tmp_path, **CALM)
            status, answer = await request
            assert status == 200, answer
            assert (await api.get("/admin/memory"))["soft_bytes"] == 600 * MB
    expected = ["memory.outside", "memory.soft", "memory.outside_over", "memory.recovered"]
    assert [event["event"] for event in running.events() if event["event"] in expected] == expected
