"""The real daemon on a real port with real models: the main job, and what goes wrong around it."""

import asyncio
import json
import os
import signal
import subprocess
import time

import openai
import pytest
from daemon_faults import IN_THREADS, WEIGHT_BYTES, hold_load, let_go, room_bytes, room_for, scripted_probe
from daemon_process import MLXD, Api, daemon, sse, text_of

LONG = {"max_tokens": 1500}


@pytest.fixture
def three(models_dir, tiny_model, other_tiny_model):
    return models_dir({"alpha": tiny_model, "beta": other_tiny_model, "org/gamma": tiny_model})


async def test_the_third_of_three_models_evicts_the_least_recently_used(tmp_path, three):
    with daemon(tmp_path / "d", three, room_for(2), environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api:
            for name in ("alpha", "beta"):
                await api.text(name)
            # of models that are idle for about as long, the one that loads faster would leave
            await api.until("/admin/models/beta", lambda model: time.time() - model["last_used_at"] > 1)
            await api.text("alpha")
            assert await api.states() == {"alpha": "ready", "beta": "ready", "org/gamma": "unloaded"}
            await api.text("org/gamma")
            assert await api.states() == {"alpha": "ready", "beta": "unloaded", "org/gamma": "ready"}
            decisions = (await api.get("/admin/decisions"))["data"]
            assert [(d["model"], d["for_model"]) for d in decisions if d["kind"] == "evict"] == [("beta", "org/gamma")]
            assert [d["seq"] for d in decisions] == list(range(1, len(decisions) + 1))


async def test_neither_a_pinned_nor_a_busy_model_is_evicted(tmp_path, three):
    with daemon(tmp_path / "d", three, room_for(2), environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api:
            status, model = await api.call("POST", "/admin/models/alpha/load", {"pin": True})
            assert (status, model["state"], model["pinned"]) == (200, "ready", True)
            async with api.stream("beta", **LONG) as busy:
                await busy.content.readline()
                status, answer = await api.call(
                    "POST",
                    "/v1/chat/completions",
                    {"model": "gamma", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
                    **{"X-Mlxd-Max-Wait": "200ms"},
                )
                assert (status, answer["error"]["code"]) == (503, "model_wait_timeout")
                assert await api.states() == {"alpha": "ready", "beta": "ready", "org/gamma": "unloaded"}
            await api.text("gamma")
            assert await api.states() == {"alpha": "ready", "beta": "unloaded", "org/gamma": "ready"}


async def test_a_ready_model_answers_while_another_loads(tmp_path, models_dir, tiny_model):
    models = models_dir({"alpha": tiny_model, "slow": tiny_model})
    held = hold_load(models / "slow")
    with daemon(tmp_path / "d", models) as running:
        async with Api(running.url) as api:
            await api.text("alpha")
            load = asyncio.create_task(api.text("slow"))
            await api.until("/admin/models/slow", lambda model: model["state"] == "loading")
            assert await api.text("alpha", "still here?")
            assert (await api.get("/admin/models/slow"))["state"] == "loading"
            await asyncio.to_thread(let_go, held)
            assert await load


async def test_eight_at_once_get_what_each_gets_alone(tmp_path, three):
    prompts = [f"question {number} " * (1 + 2 * number) for number in range(8)]
    with daemon(tmp_path / "d", three) as running:
        async with Api(running.url) as api:
            alone = [await api.text("alpha", prompt) for prompt in prompts]
            together = await asyncio.gather(*[api.text("alpha", prompt) for prompt in prompts])
            assert together == alone
            async with api.stream("alpha", prompts[3]) as response:
                assert text_of(await sse(response)) == alone[3]


async def test_the_openai_client_lists_and_streams(tmp_path, three):
    with daemon(tmp_path / "d", three) as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
            names = [model.id async for model in await client.models.list()]
            assert names[:3] == ["alpha", "beta", "org/gamma"]
            assert (await client.models.retrieve("org/gamma")).id == "org/gamma"
            messages = [{"role": "user", "content": "hello"}]
            whole = await client.chat.completions.create(model="alpha", messages=messages, max_tokens=12, temperature=0)
            stream = await client.chat.completions.create(
                model="alpha",
                messages=messages,
                max_tokens=12,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert streamed == whole.choices[0].message.content
            assert chunks[-1].usage == whole.usage
            completion = await client.completions.create(model="beta", prompt="once", max_tokens=5, temperature=0)
            assert completion.usage.completion_tokens == 5
            with pytest.raises(openai.NotFoundError) as missing:
                await client.chat.completions.create(model="alhpa", messages=messages)
            assert missing.value.body["details"]["suggestions"][0] == "alpha"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_stream_under_way_is_finished_before_the_daemon_stops(tmp_path, three, number):
    with daemon(tmp_path / "d", three) as running:
        async with Api(running.url) as api:
            async with api.stream("alpha", max_tokens=120) as response:
                await response.content.readline()
                running.process.send_signal(number)
                events = await sse(response)
            assert events[-1] == "[DONE]"
            assert running.exit_code() == 0


async def test_a_stream_that_outlasts_the_drain_ends_with_shutting_down(tmp_path, three):
    with daemon(tmp_path / "d", three, '[server]\ndrain_timeout = "200ms"\n') as running:
        async with Api(running.url) as api:
            async with api.stream("alpha", max_tokens=30000) as response:
                await response.content.readline()
                running.process.send_signal(signal.SIGINT)
                events = await sse(response)
            assert events[-1]["error"]["code"] == "shutting_down"
            assert running.exit_code() == 0


async def test_a_load_that_is_stuck_does_not_keep_the_daemon_from_stopping(tmp_path, models_dir, tiny_model):
    models = models_dir({"stuck": tiny_model})
    held = hold_load(models / "stuck")
    with daemon(tmp_path / "d", models, '[residency]\nunload_timeout = "1s"\n') as running:
        async with Api(running.url) as api:
            waiting = asyncio.create_task(api.chat("stuck"))
            with await asyncio.to_thread(held.open, "w"):  # once the load reads it
                assert (await api.states())["stuck"] == "loading"
                running.process.send_signal(signal.SIGTERM)
                status, answer = await waiting
                assert (status, answer["error"]["code"]) == (503, "shutting_down")
                assert await asyncio.to_thread(running.process.wait, 20) == 0


def wait_for_event(running, name: str) -> None:
    while name not in running.log.read_text():
        assert running.process.poll() is None


async def test_a_client_that_leaves_frees_its_slot(tmp_path, three):
    with daemon(tmp_path / "d", three) as running:
        async with Api(running.url) as api:
            async with api.stream("alpha", max_tokens=30000) as response:
                await response.content.readline()
                response.close()
            await api.until("/admin/requests", lambda answer: answer["data"] == [])
            unstreamed = asyncio.create_task(api.chat("alpha", max_tokens=30000))
            await api.until("/admin/requests", lambda answer: answer["data"] != [])
            unstreamed.cancel()
            await api.until("/admin/requests", lambda answer: answer["data"] == [])
            # the engine takes the row out before its next step
            model = await api.until("/admin/models/alpha", lambda answer: answer["engine"]["running"] == 0)
            assert model["leases"] == 0


async def test_a_cancel_keeps_what_was_generated(tmp_path, three):
    with daemon(tmp_path / "d", three) as running:
        async with Api(running.url) as api:
            body = {"model": "alpha", "messages": [{"role": "user", "content": "go"}], "max_tokens": 30000}
            answering = asyncio.create_task(api.call("POST", "/v1/chat/completions", body, **{"X-Request-Id": "mine"}))
            await api.until("/admin/requests", lambda answer: any(r["completion_tokens"] > 3 for r in answer["data"]))
            assert await api.call("DELETE", "/v1/requests/mine") == (200, {"id": "mine", "cancelled": True})
            status, answer = await answering
            assert (status, answer["choices"][0]["finish_reason"]) == (200, "stop")
            assert answer["mlxd"]["cancelled"]
            assert answer["usage"]["completion_tokens"] > 3
            status, answer = await api.call("DELETE", "/v1/requests/mine")
            assert (status, answer["error"]["code"]) == (404, "request_not_found")


async def test_broken_folders_fail_with_their_reason_and_the_daemon_goes_on(tmp_path, models_dir, tiny_model):
    names = ("good", "no-weights", "corrupt", "truncated", "unknown-type")
    models = models_dir(dict.fromkeys(names, tiny_model))
    (models / "no-weights" / "model.safetensors").unlink()
    (models / "corrupt" / "model.safetensors").write_bytes(b"\x10" + b"\xff" * 100)
    weights = models / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:4_000_000])
    config = models / "unknown-type" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "quantum9"}))
    reasons = {
        "no-weights": "bad_files",
        "corrupt": "bad_files",
        "truncated": "bad_files",
        "unknown-type": "unsupported",
    }
    with daemon(tmp_path / "d", models) as running:
        async with Api(running.url) as api:
            for name, reason in reasons.items():
                status, answer = await api.chat(name)
                assert (status, answer["error"]["code"]) == (503, "model_load_failed"), answer
                assert answer["error"]["details"]["reason"] == reason, answer
                model = await api.get(f"/admin/models/{name}")
                assert (model["state"], model["error"]["reason"]) == ("failed", reason)
            assert await api.text("good")


async def test_a_bad_body_never_reaches_an_engine(tmp_path, three):
    bad = [
        {"logit_bias": {"99999999": 5}},
        {"stop": [5]},
        {"temperature": "hot"},
        {"max_tokens": 0},
        {"seed": 1.5},
        {"messages": []},
        {"top_k": -1},
        {"tools": [{"type": "web_search"}]},
        {"nonsense": 1},
    ]
    with daemon(tmp_path / "d", three) as running:
        async with Api(running.url) as api:
            await api.text("alpha")
            served = (await api.get("/admin/models/alpha"))["engine"]["prompt_tokens"]
            for change in bad:
                status, answer = await api.chat("alpha", **change)
                assert (status, answer["error"]["code"]) == (400, "invalid_request"), answer
                assert answer["error"]["param"].startswith(next(iter(change))), answer
            status, answer = await api.chat("alpha", "word " * 40000)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert (await api.get("/admin/models/alpha"))["engine"]["prompt_tokens"] == served


async def test_crossing_the_ceiling_aborts_all_requests_and_models_stay_loaded(tmp_path, three):
    environ = scripted_probe(tmp_path)
    config = '[memory]\nceiling = "300MB"\npoll_interval = "50ms"\n'
    with daemon(tmp_path / "d", three, config, environ=environ) as running:
        async with Api(running.url) as api:
            await api.call("POST", "/admin/models/alpha/load", {"pin": True})
            requests = [asyncio.create_task(api.chat("alpha", f"q{i}", max_tokens=30000)) for i in range(4)]
            await api.until("/admin/models/alpha", lambda model: model["engine"]["running"] == 4)
            scripted_probe(tmp_path, used=350_000_000)
            for status, answer in await asyncio.gather(*requests):
                assert (status, answer["error"]["code"]) == (503, "memory_ceiling"), answer
                assert answer["error"]["details"]["ceiling_bytes"] == 300_000_000
            memory = await api.get("/admin/memory")
            assert (memory["pressure"], memory["limit"]) == ("ceiling", "memory.ceiling")
            assert (await api.states())["alpha"] == "ready"
            scripted_probe(tmp_path)
            await api.until("/admin/memory", lambda memory: memory["pressure"] == "ok")
            assert await api.text("alpha")
            aborts = [d for d in (await api.get("/admin/decisions"))["data"] if d["kind"] == "abort"]
            assert [(d["reason"], d["inputs"]["requests"]) for d in aborts] == [("memory_ceiling", 4)]


async def test_an_operators_abort_says_so_and_models_stay(tmp_path, three):
    with daemon(tmp_path / "d", three) as running:
        async with Api(running.url) as api:
            requests = [asyncio.create_task(api.chat("alpha", f"q{i}", max_tokens=30000)) for i in range(3)]
            await api.until("/admin/models/alpha", lambda model: (model["engine"] or {}).get("running") == 3)
            assert await api.call("POST", "/admin/abort") == (200, {"aborted": 3})
            for status, answer in await asyncio.gather(*requests):
                assert (status, answer["error"]["code"]) == (503, "memory_ceiling")
                assert "operator" in answer["error"]["message"]
            assert await api.text("alpha")


async def test_above_the_soft_limit_idle_models_leave(tmp_path, three):
    environ = scripted_probe(tmp_path)
    config = '[memory]\nceiling = "400MB"\nsoft = "300MB"\npoll_interval = "50ms"\n'
    with daemon(tmp_path / "d", three, config, environ=environ) as running:
        async with Api(running.url) as api:
            await api.text("alpha")
            scripted_probe(tmp_path, used=310_000_000)
            await api.until("/admin/models/alpha", lambda model: model["state"] == "unloaded")
            evictions = [d for d in (await api.get("/admin/decisions"))["data"] if d["kind"] == "evict"]
            assert [(d["model"], d["reason"]) for d in evictions] == [("alpha", "memory_soft")]


async def test_a_prompt_too_large_for_memory_is_refused_with_numbers_after_idle_models_left(tmp_path, three):
    environ = IN_THREADS | scripted_probe(tmp_path)
    config = room_for(2, WEIGHT_BYTES)
    with daemon(tmp_path / "d", three, config, environ=environ) as running:
        async with Api(running.url) as api:
            await api.text("alpha")
            await api.text("beta")
            status, answer = await api.chat("alpha", "word " * 3000)
            assert (status, answer["error"]["code"]) == (507, "prefill_memory_exceeded"), answer
            assert answer["error"]["details"]["estimated_bytes"] > answer["error"]["details"]["limit_bytes"]
            assert await api.text("alpha")


async def test_a_prompt_is_admitted_on_a_reading_of_its_own(tmp_path, three):
    environ = scripted_probe(tmp_path)
    config = room_for(8) + 'poll_interval = "1h"\n'
    with daemon(tmp_path / "d", three, config, environ=environ) as running:
        async with Api(running.url) as api:
            status, answer = await api.chat("alpha", "word " * 600)
            assert status == 200, answer
            scripted_probe(tmp_path, used=room_bytes(8) - 1_000_000)
            # a reading serves the looks of the next few milliseconds too
            async with asyncio.timeout(30):
                while status == 200:
                    status, answer = await api.chat("alpha", f"{time.monotonic()} " * 100)
            assert (status, answer["error"]["code"]) == (507, "prefill_memory_exceeded"), answer


async def test_aliases_presets_and_the_default_reach_their_model(tmp_path, three):
    config = """
[models]
default = "alpha"
[[model]]
name = "alpha"
aliases = ["gpt-4o"]
sampling = { max_tokens = 3 }
presets = [{ name = "alpha-long", sampling = { max_tokens = 7 } }]
"""
    with daemon(tmp_path / "d", three, config) as running:
        async with Api(running.url) as api:
            lengths = {}
            for name in ("alpha", "gpt-4o", "alpha-long", "ALPHA"):
                _, answer = await api.chat(name, max_tokens=None)
                lengths[name] = answer["usage"]["completion_tokens"]
            assert lengths == {"alpha": 3, "gpt-4o": 3, "alpha-long": 7, "ALPHA": 3}
            status, answer = await api.call(
                "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
            )
            assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
            assert (await api.get("/admin/models/gpt-4o"))["id"] == "alpha"


async def test_memory_parts_sum_to_the_footprint(tmp_path, three):
    with daemon(tmp_path / "d", three) as running:
        async with Api(running.url) as api:
            await api.text("alpha")
            memory = await api.get("/admin/memory")
            assert sum(memory["parts"].values()) == memory["footprint_bytes"]
            assert [model["id"] for model in memory["models"]] == ["alpha"]


async def test_without_autoload_a_request_is_told_to_load(tmp_path, three):
    with daemon(tmp_path / "d", three, "[models]\nautoload = false\n") as running:
        async with Api(running.url) as api:
            status, answer = await api.chat("alpha")
            assert (status, answer["error"]["code"]) == (409, "model_not_loaded")
            await api.call("POST", "/admin/models/alpha/load", {})
            assert await api.text("alpha")


async def test_preloaded_models_are_ready_without_a_request(tmp_path, three):
    with daemon(tmp_path / "d", three, '[models]\npreload = ["beta"]\n') as running:
        async with Api(running.url) as api:
            await api.until("/admin/models/beta", lambda model: model["state"] == "ready")


def serve(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "MLXD_ENGINE__BLAS": "off", **environ}
    return subprocess.run(
        [MLXD, "serve", *arguments], capture_output=True, text=True, env=variables, timeout=60, check=False
    )


async def test_exit_codes_tell_a_busy_directory_a_busy_port_and_a_bad_config(tmp_path, three):
    with daemon(tmp_path / "d", three) as running:
        port = running.url.rpartition(":")[2]
        second = serve("--port", "0", MLXD_SERVER__STATE_DIR=str(tmp_path / "d" / "state"))
        assert second.returncode == 75, second.stderr
        assert str(running.process.pid) in second.stderr
        taken = serve("--port", port, MLXD_SERVER__STATE_DIR=str(tmp_path / "other"))
        assert taken.returncode == 76, taken.stderr
        assert port in taken.stderr
    bad = tmp_path / "bad.toml"
    bad.write_text("[server]\nprot = 1\n")
    refused = serve("--config", str(bad))
    assert refused.returncode == 78
    assert "bad.toml:2" in refused.stderr
    assert "port" in refused.stderr
    low = serve("--port", "0", MLXD_SERVER__STATE_DIR=str(tmp_path / "low"), MLXD_MEMORY__CEILING="1MB")
    assert (low.returncode, "memory.ceiling" in low.stderr) == (78, True)
    wide = serve("--port", "0", "--host", "0.0.0.0", MLXD_SERVER__STATE_DIR=str(tmp_path / "wide"))
    assert (wide.returncode, "server.host" in wide.stderr) == (78, True)
    for result in (second, taken, refused, low, wide):
        assert "Traceback" not in result.stderr


async def test_the_daemon_is_ready_before_mlx_is_imported(tmp_path, three):
    # another process imports it where engines have their own
    with daemon(tmp_path / "d", three, environ=IN_THREADS) as running:
        async with Api(running.url) as api:
            assert (await api.get("/health"))["status"] == "ok"
            await asyncio.to_thread(wait_for_event, running, "mlx.imported")
        names = [event["event"] for event in running.events()]
        assert names.index("daemon.ready") < names.index("mlx.imported")
