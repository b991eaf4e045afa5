"""A real daemon that is told of a footprint: each rung in order and once, and an abort that reaches everybody."""

from __future__ import annotations

import asyncio

from daemon_faults import scripted_probe
from daemon_process import Api, daemon, sse
from memory_daemon import MB, kinds, metrics, rungs

CONFIG = '[memory]\nceiling = "600MB"\nsoft = "400MB"\npoll_interval = "20ms"\n'
ENDLESS = {"max_tokens": 30000, "ignore_eos": True}
GENTLE = ["clear_cache", "trim_prefixes", "evict_idle", "hold_prefills", "slow_prefills"]


def is_held(answer) -> bool:
    """Whether one request waits for memory while another gets on."""
    seen = {(request["state"], request["waiting_for"]) for request in answer["data"]}
    return seen == {("decoding", None), ("waiting", "memory")}


async def taken(api: Api) -> dict[str, float]:
    """How often each rung was taken, as the metrics have it."""
    figures = await metrics(api)
    wanted = {rung: f'mlxd_memory_rungs_total{{rung="{rung}"}}' for rung in (*GENTLE, "abort_all")}
    return {rung: figures[name] for rung, name in wanted.items() if name in figures}


async def test_each_rung_is_taken_in_order_and_once_and_all_let_go(tmp_path, models_dir, tiny_model):
    models = models_dir({"busy": tiny_model, "idle": tiny_model})
    with daemon(tmp_path / "d", models, CONFIG, environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api:
            await api.text("idle")
            async with api.stream("busy", **ENDLESS) as first:
                await first.content.readline()
                for climb in (1, 2):
                    scripted_probe(tmp_path, used=410 * MB)
                    await api.until("/admin/memory", lambda _, count=climb: rungs(running) == GENTLE * count)
                    assert await taken(api) == dict.fromkeys(GENTLE, climb)
                    second = asyncio.create_task(api.chat("busy", f"question {climb}"))
                    await api.until("/admin/requests", is_held)
                    scripted_probe(tmp_path)
                    status, answer = await second
                    assert status == 200, answer
                assert (await api.get("/admin/models/busy"))["engine"]["running"] == 1
                first.close()
            assert await kinds(api, "evict", "abort", "refuse") == [("evict", "idle", "memory_soft")]


async def test_the_ceiling_aborts_everybody_once_and_loaded_models_stay(tmp_path, models_dir, tiny_model):
    models = models_dir({"busy": tiny_model})
    with daemon(tmp_path / "d", models, CONFIG, environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api:
            await api.call("POST", "/admin/models/busy/load", {"pin": True})
            async with api.stream("busy", **ENDLESS) as first:
                await first.content.readline()
                scripted_probe(tmp_path, used=410 * MB)
                await api.until("/admin/memory", lambda _: rungs(running) == GENTLE)
                held = asyncio.create_task(api.chat("busy"))
                await api.until("/admin/requests", is_held)
                scripted_probe(tmp_path, used=620 * MB)
                status, answer = await held
                assert (status, answer["error"]["code"]) == (503, "memory_ceiling"), answer
                assert answer["error"]["details"]["footprint_bytes"] == 620 * MB
                assert (await sse(first))[-1]["error"]["code"] == "memory_ceiling"
            for used in (500 * MB, 630 * MB, 500 * MB):  # never back below soft: the same crossing
                scripted_probe(tmp_path, used=used)
                await api.until("/admin/memory", lambda memory, now=used: memory["footprint_bytes"] == now)
            assert await api.states() == {"busy": "ready"}
            scripted_probe(tmp_path)
            await api.until("/admin/memory", lambda memory: memory["pressure"] == "ok")
            assert await api.text("busy")
            assert await taken(api) == dict.fromkeys([*GENTLE, "abort_all"], 1)
            [abort] = [d for d in (await api.get("/admin/decisions"))["data"] if d["kind"] == "abort"]
            assert (abort["reason"], abort["inputs"]["requests"]) == ("memory_ceiling", 2)
        assert rungs(running) == [*GENTLE, "abort_all"]


STAGES = {("decoding", None), ("waiting", "slot"), ("prefilling", None), ("waiting", "memory")}


async def test_an_operators_abort_ends_each_request_wherever_its_engine_has_it(
    tmp_path, models_dir, micro_model, tiny_model
):
    models = models_dir({"narrow": tiny_model, "long": tiny_model, "short": micro_model})
    config = '[memory]\nceiling = "9GB"\nsoft = "8GB"\npoll_interval = "20ms"\n'
    config += '[[model]]\nname = "narrow"\nengine = { max_running = 1 }\n'
    with daemon(tmp_path / "d", models, config, environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api:
            await api.text("short")
            calls = [api.chat("narrow", f"q{i}", **ENDLESS) for i in range(2)] + [api.chat("long", "word " * 10000)]
            requests = [asyncio.create_task(call) for call in calls]
            await api.until("/admin/requests", lambda answer: stages(answer) == STAGES - {("waiting", "memory")})
            scripted_probe(tmp_path, used=8500 * MB)
            await api.until("/admin/memory", lambda memory: memory["pressure"] == "soft")
            requests.append(asyncio.create_task(api.chat("long", "again")))
            await api.until("/admin/requests", lambda answer: stages(answer) == STAGES)
            assert await api.call("POST", "/admin/abort") == (200, {"aborted": 4})
            for status, answer in await asyncio.gather(*requests):
                assert (status, answer["error"]["code"]) == (503, "memory_ceiling"), answer
            assert (await api.get("/admin/requests"))["data"] == []
            scripted_probe(tmp_path)
            await api.until("/admin/memory", lambda memory: memory["pressure"] == "ok")
            for name in ("narrow", "long", "short"):
                assert await api.text(name)
            for model in (await api.get("/admin/models"))["data"]:
                engine = model["engine"]
                assert (model["leases"], engine["running"], engine["waiting"], model["kv_bytes"]) == (0, 0, 0, 0)


def stages(answer) -> set[tuple[str, str | None]]:
    """Where requests are, and what they wait for."""
    return {(request["state"], request["waiting_for"]) for request in answer["data"]}
