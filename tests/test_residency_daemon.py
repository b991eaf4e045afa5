"""Who is served and who waits, with a real daemon, real models and many clients at a time."""

import asyncio
import time

from daemon_faults import PROCESS_BYTES, hold_load, let_go, room_for, scripted_probe
from daemon_process import Api, chat_body, daemon


async def test_fifty_first_requests_make_one_load_and_half_of_them_leaving_hurts_no_other(
    tmp_path, models_dir, tiny_model
):
    models = models_dir({"slow": tiny_model})
    held = hold_load(models / "slow")
    with daemon(tmp_path / "d", models) as running:
        async with Api(running.url) as api:
            asked = [asyncio.create_task(api.chat("slow")) for _ in range(50)]
            await api.until("/admin/models/slow", lambda model: model["queued"] == 50)
            for task in asked[::2]:
                task.cancel()
            await api.until("/admin/models/slow", lambda model: model["queued"] == 25)
            await asyncio.to_thread(let_go, held)
            answers = await asyncio.gather(*asked[1::2])
            assert {status for status, _ in answers} == {200}
            assert len({answer["choices"][0]["message"]["content"] for _, answer in answers}) == 1
            decisions = (await api.get("/admin/decisions"))["data"]
            assert [(decision["kind"], decision["model"]) for decision in decisions] == [("load", "slow")]
            await api.until("/admin/models/slow", lambda model: model["leases"] == 0)
            assert (await api.get("/admin/requests"))["data"] == []


async def test_endless_traffic_on_one_model_does_not_starve_another(tmp_path, models_dir, tiny_model, other_tiny_model):
    models = models_dir({"busy": tiny_model, "rare": other_tiny_model})
    config = room_for(1) + '[residency]\nmax_wait = "1s"\n'
    with daemon(tmp_path / "d", models, config, environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api:
            served = asyncio.Event()
            first = asyncio.Event()
            # of unlike lengths, so that there is never a moment without any
            lengths = (200, 310, 430)
            traffic = [asyncio.create_task(ask_on_and_on(api, length, first, served)) for length in lengths]
            await first.wait()
            status, answer = await api.chat("rare", max_tokens=4)
            served.set()
            longest = max(await asyncio.gather(*traffic))
            assert status == 200, answer
            drains = [d for d in (await api.get("/admin/decisions"))["data"] if d["kind"] == "drain"]
            assert [(d["model"], d["for_model"], d["reason"]) for d in drains][:1] == [("busy", "rare", "max_wait")]
            assert drains[0]["inputs"]["waited_s"] >= 1.0
            # it waited for max_wait, one answer, an unload and its load; the machine may be slow at all of them
            assert answer["mlxd"]["queue_s"] <= 1.0 + longest + answer["mlxd"]["load_s"] + 5.0


async def ask_on_and_on(api: Api, length: int, first: asyncio.Event, until: asyncio.Event) -> float:
    """Ask the next question when one is answered; the seconds of the longest answer."""
    longest = 0.0
    while not until.is_set():
        started = time.monotonic()
        status, answer = await api.chat("busy", max_tokens=length)
        assert status == 200, answer
        longest = max(longest, time.monotonic() - started)
        first.set()
    return longest


async def test_a_model_that_can_never_fit_is_refused_at_once_and_nobody_leaves(
    tmp_path, models_dir, tiny_model, micro_model
):
    models = models_dir({"large": tiny_model, "small": micro_model})
    config = f'[memory]\nceiling = {104_000_000 + PROCESS_BYTES}\nsoft = "100%"\n'
    with daemon(tmp_path / "d", models, config, environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api:
            await api.text("small")
            status, answer = await api.chat("large")
            assert (status, answer["error"]["code"]) == (507, "model_too_large")
            details = answer["error"]["details"]
            assert details["needed_bytes"] > details["limit_bytes"]
            assert await api.states() == {"large": "unloaded", "small": "ready"}
            kinds = [decision["kind"] for decision in (await api.get("/admin/decisions"))["data"]]
            assert kinds == ["load", "refuse"]
            assert (await api.get("/admin/explain/large"))["verdict"] == "never_fits"


async def test_what_is_explained_is_what_happens(tmp_path, models_dir, tiny_model, other_tiny_model):
    models = models_dir({"one": tiny_model, "two": other_tiny_model, "three": tiny_model})
    with daemon(tmp_path / "d", models, room_for(2), environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api:
            assert (await api.get("/admin/explain/one"))["verdict"] == "loads"
            await api.text("one")
            await api.text("two")
            told = await api.get("/admin/explain/three")
            assert told["verdict"] == "loads_after_eviction"
            status, planned = await api.call("POST", "/admin/models/three/load", {"dry_run": True, "pin": True})
            assert (status, planned["evicts"]) == (200, told["evicts"])
            assert await api.states() == {"one": "ready", "two": "ready", "three": "unloaded"}
            assert not (await api.get("/admin/models/three"))["pinned"]
            await api.text("three")
            evicted = [d["model"] for d in (await api.get("/admin/decisions"))["data"] if d["kind"] == "evict"]
            assert evicted == told["evicts"]


async def test_a_client_that_waited_in_vain_is_told_when_to_come_back(
    tmp_path, models_dir, tiny_model, other_tiny_model
):
    models = models_dir({"busy": tiny_model, "rare": other_tiny_model})
    with daemon(tmp_path / "d", models, room_for(1), environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api, api.stream("busy", max_tokens=1500) as busy:
            await busy.content.readline()
            headers = {"X-Mlxd-Max-Wait": "100ms"}
            async with api.post("/v1/chat/completions", chat_body("rare", "hi"), headers) as refused:
                assert refused.status == 503
                assert int(refused.headers["Retry-After"]) >= 1
                assert (await refused.json())["error"]["code"] == "model_wait_timeout"
