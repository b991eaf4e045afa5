"""A reload of the real daemon: what changed applies, and nothing else is touched."""

import asyncio
import shutil
import signal

import pytest
from daemon_faults import hold_load, let_go, room_for, scripted_probe
from daemon_process import Api, daemon, sse

RELOAD = ("POST", "/admin/reload")
LONG = {"max_tokens": 30000}
SILENT = '[models]\nwatch_interval = "never"\n'


@pytest.fixture
def two(models_dir, tiny_model, other_tiny_model):
    return models_dir({"alpha": tiny_model, "beta": other_tiny_model})


def entry(name, text=""):
    return f'[[model]]\nname = "{name}"\n{text}\n'


def write(running, text):
    (running.folder / "mlxd.toml").write_text(text)


async def reloaded(api, running, text, **body):
    write(running, text)
    status, diff = await api.call(*RELOAD, body)
    assert status == 200, diff
    return diff


async def diff_decisions(api):
    return [d for d in (await api.get("/admin/decisions"))["data"] if d["kind"] == "reload"]


async def test_live_changes_touch_no_stream_that_runs(tmp_path, two):
    before = SILENT + room_for(4)
    after = (
        SILENT
        + room_for(6)
        + "[engine]\nmax_running = 1\n"
        + "[server]\nmax_body = 2000\n"
        + entry(
            "alpha",
            'ttl = "7m"\npinned = true\naliases = ["gpt"]\n'
            'presets = [{ name = "cold", sampling = { max_tokens = 2 } }]\n',
        )
    )
    with daemon(tmp_path / "d", two, before, environ=scripted_probe(tmp_path)) as running:
        async with Api(running.url) as api, api.stream("alpha", **LONG) as stream:
            await stream.content.readline()
            loaded_at = (await api.get("/admin/models/alpha"))["loaded_at"]
            ceiling = (await api.get("/admin/memory"))["ceiling_bytes"]
            diff = await reloaded(api, running, after)
            assert diff["models"] == {"added": [], "removed": [], "reloaded": [], "changed": ["alpha"]}
            applied = {change["key"]: change["applies"] for change in diff["keys"]}
            assert {"engine.max_running", "memory.ceiling", "model.alpha.ttl", "server.max_body"} <= applied.keys()
            assert set(applied.values()) == {"now"}
            model = await api.get("/admin/models/gpt")
            assert (model["ttl_s"], model["pinned"], model["state"]) == (420.0, True, "ready")
            assert model["loaded_at"] == pytest.approx(loaded_at, abs=0.01)
            assert (await api.get("/admin/memory"))["ceiling_bytes"] > ceiling
            second = asyncio.create_task(api.chat("cold", max_tokens=None))
            await api.until("/admin/models/alpha", lambda model: model["engine"]["waiting"] == 1)
            status, answer = await api.chat("alpha", "x" * 2000)
            assert (status, answer["error"]["code"]) == (413, "body_too_large")
            [request] = [r for r in (await api.get("/admin/requests"))["data"] if r["state"] == "decoding"]
            await api.call("DELETE", f"/v1/requests/{request['id']}")
            assert (await sse(stream))[-1] == "[DONE]"
            status, answer = await second
            assert (status, answer["usage"]["completion_tokens"]) == (200, 2)
            [decision] = await diff_decisions(api)
            assert (decision["reason"], decision["inputs"]["models"]["changed"]) == ("operator", ["alpha"])


async def test_an_operators_change_survives_a_reload_that_says_nothing_of_it(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            await api.call("PATCH", "/admin/models/alpha", {"pinned": True, "ttl": 99})
            await reloaded(api, running, SILENT + entry("alpha", 'aliases = ["a"]\n'))
            model = await api.get("/admin/models/a")
            assert (model["pinned"], model["ttl_s"]) == (True, 99.0)


async def test_a_removed_model_finishes_what_runs_and_is_gone(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            async with api.stream("beta", max_tokens=300) as stream:
                await stream.content.readline()
                shutil.rmtree(two / "beta")
                diff = await reloaded(api, running, SILENT)
                assert diff["models"]["removed"] == ["beta"]
                status, answer = await api.chat("beta")
                assert (status, answer["error"]["code"]) == (404, "model_not_found")
                assert (await sse(stream))[-1] == "[DONE]"
            await api.until("/admin/models", lambda answer: [m["id"] for m in answer["data"]] == ["alpha"])
            assert await api.text("alpha")


async def test_requests_that_wait_for_a_removed_model_are_refused(tmp_path, models_dir, tiny_model):
    models = models_dir({"alpha": tiny_model, "slow": tiny_model, "gone": tiny_model})
    held = hold_load(models / "slow")
    with daemon(tmp_path / "d", models, SILENT + '[server]\nkeepalive_interval = "1ms"\n') as running:
        async with Api(running.url) as api:
            slow = asyncio.create_task(api.text("slow"))
            await api.until("/admin/models/slow", lambda model: model["state"] == "loading")
            waiting = asyncio.create_task(api.chat("gone"))
            async with api.stream("gone") as stream:
                await stream.content.readline()  # a comment: the status is sent
                await api.until("/admin/models/gone", lambda model: model["queued"] == 2)
                shutil.rmtree(models / "gone")
                await reloaded(api, running, SILENT)
                status, answer = await waiting
                assert (status, answer["error"]["code"]) == (404, "model_not_found")
                assert (await sse(stream))[-1]["error"]["code"] == "model_not_found"
            await asyncio.to_thread(let_go, held)
            assert await slow


async def test_a_changed_path_is_loaded_by_the_next_request(tmp_path, two):
    def config(folder):
        return SILENT + entry("m", f'path = "{two / folder}"\n')

    with daemon(tmp_path / "d", two, config("alpha")) as running:
        async with Api(running.url) as api:
            first, other = await api.text("m"), await api.text("beta")
            assert first != other
            diff = await reloaded(api, running, config("beta"))
            assert diff["models"]["reloaded"] == ["m"]
            assert [(c["key"], c["applies"]) for c in diff["keys"]] == [("model.m.path", "reload")]
            assert await api.text("m") == other
            assert (await api.get("/admin/models/m"))["path"] == str(two / "beta")


async def test_a_pinned_model_that_is_loaded_otherwise_comes_back_by_itself(tmp_path, two):
    pinned = entry("alpha", "pinned = true\n")
    with daemon(tmp_path / "d", two, SILENT + pinned) as running:
        async with Api(running.url) as api:
            await api.text("alpha")
            await api.text("beta")
            loaded_at = (await api.get("/admin/models/alpha"))["loaded_at"]
            diff = await reloaded(api, running, SILENT + pinned + "engine = { context_length = 99 }\n")
            assert diff["models"]["reloaded"] == ["alpha"]
            await api.until(
                "/admin/models/alpha", lambda model: model["state"] == "ready" and model["loaded_at"] > loaded_at
            )
            assert (await api.get("/admin/models/beta"))["state"] == "ready"


async def test_a_context_length_that_changed_counts_after_the_next_load(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            await api.text("alpha")
            await api.text("beta")
            diff = await reloaded(api, running, SILENT + entry("alpha", "engine = { context_length = 40 }\n"))
            assert diff["models"]["reloaded"] == ["alpha"]
            status, answer = await api.chat("alpha", "word " * 60)
            assert answer["error"]["details"]["context_length"] == 40
            assert status == 400
            assert (await api.states())["beta"] == "ready"


BAD = {
    "[server\n": (1, None, "not TOML"),
    "[server]\nport = 1\nprot = 2\n": (3, "server.prot", "did you mean port"),
    '[engine]\n\nmax_running = "many"\n': (3, "engine.max_running", "expected an integer"),
    '[models]\ndefault = "nobody"\n': (2, "models.default", "there is no model 'nobody'"),
    '[memory]\nceiling = "1MB"\n': (2, "memory.ceiling", "raise memory.ceiling"),
    '[[model]]\nname = "ghost"\n': (1, "model.ghost", "no model of this name"),
    '[engine]\nprefix_cache = "off"\nprefix_cache_disk = "1GB"\n': (
        3,
        "engine.prefix_cache_disk",
        "needs prefix_cache",
    ),
    '[server]\nhost = "0.0.0.0"\n': (2, "server.host", "other machines can reach"),
}


async def test_an_invalid_file_changes_nothing_and_says_where_it_is_wrong(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT, environ={"MLXD_CONFIG": ""}) as running:
        file = running.folder / "mlxd.toml"
        async with Api(running.url) as api:
            config = await api.get("/admin/config")
            models = await api.get("/admin/models")
            for text, (line, key, says) in BAD.items():
                write(running, text)
                status, answer = await api.call(*RELOAD)
                assert (status, answer["error"]["code"]) == (400, "invalid_request"), answer
                [problem] = answer["error"]["details"]["problems"]
                assert (problem["source"], problem["line"], problem["key"]) == (str(file), line, key), text
                assert says in problem["message"]
                assert answer["error"]["message"].startswith(f"{file}:{line}: ")
            file.unlink()
            status, answer = await api.call(*RELOAD)
            assert (status, str(file) in answer["error"]["message"]) == (400, True)
            assert await api.get("/admin/config") == config
            assert await api.get("/admin/models") == models
            assert await diff_decisions(api) == []


async def test_what_needs_a_restart_is_told_and_stays_as_it_is(tmp_path, two):
    text = SILENT + '[log]\nfile = "other.log"\n[engine]\nstep_lock = true\nmax_tokens = 5\n'
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            for _ in range(2):
                diff = await reloaded(api, running, text)
                applied = {change["key"]: change["applies"] for change in diff["keys"]}
                assert applied.pop("engine.max_tokens", "now") == "now"
                assert applied == {"log.file": "restart", "engine.step_lock": "restart"}
            config = await api.get("/admin/config")
            assert (config["log"]["file"], config["engine"]["step_lock"]) == ("", False)
            assert config["engine"]["max_tokens"] == 5
            assert not (running.folder / "other.log").exists()


async def test_a_dry_run_changes_nothing(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            await api.text("alpha")
            before = await api.get("/admin/config")
            shutil.rmtree(two / "beta")
            text = SILENT + entry("alpha", 'ttl = 5\naliases = ["x"]\nengine = { context_length = 99 }\n')
            diff = await reloaded(api, running, text, dry_run=True)
            assert diff["dry_run"]
            assert diff["models"] == {"added": [], "removed": ["beta"], "reloaded": ["alpha"], "changed": []}
            assert await api.get("/admin/config") == before
            assert await api.states() == {"alpha": "ready", "beta": "unloaded"}
            assert await diff_decisions(api) == []
            assert (await reloaded(api, running, text))["models"]["removed"] == ["beta"]


async def test_sighup_reloads_and_an_invalid_file_is_logged(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            write(running, "[server]\nprot = 1\n")
            running.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(running_logs, running, "daemon.reload_refused")
            [refused] = [event for event in running.events() if event["event"] == "daemon.reload_refused"]
            assert "mlxd.toml:2: server.prot" in refused["problems"][0]
            write(running, SILENT + entry("alpha", 'aliases = ["x"]\n'))
            running.process.send_signal(signal.SIGHUP)
            await api.until("/admin/models", lambda answer: answer["data"][0]["aliases"] == ["x"])
            [decision] = await diff_decisions(api)
            assert decision["reason"] == "signal"


def running_logs(running, event):
    while event not in running.log.read_text():
        assert running.process.poll() is None


async def test_the_log_level_and_the_pace_of_memory_follow_at_once(tmp_path, two):
    environ = scripted_probe(tmp_path)
    slow = SILENT + '[memory]\nceiling = "300MB"\npoll_interval = "1h"\n[log]\nlevel = "warning"\n'
    fast = SILENT + '[memory]\nceiling = "300MB"\npoll_interval = "20ms"\n[log]\nlevel = "debug"\n'
    with daemon(tmp_path / "d", two, slow, environ=environ) as running:
        async with Api(running.url) as api:
            await reloaded(api, running, fast)
            scripted_probe(tmp_path, used=123_000_000)
            await api.until("/admin/memory", lambda memory: memory["footprint_bytes"] == 123_000_000)
            await asyncio.to_thread(running_logs, running, "http.request")


async def test_what_a_request_is_checked_against_follows_at_once(tmp_path, two):
    text = SILENT + 'default = "beta"\nautoload = false\n[server]\nallowed_hosts = ["box.local"]\n'
    text += 'cors_origins = ["https://a.example"]\n[residency]\nqueue_timeout = "1ms"\n'
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            status, answer = await api.call("GET", "/health", None, Host="box.local")
            assert (status, answer["error"]["code"]) == (403, "host_not_allowed")
            await reloaded(api, running, text)
            assert (await api.call("GET", "/health", None, Host="box.local"))[0] == 200
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
            status, answer = await api.call("POST", "/v1/chat/completions", body, Origin="https://a.example")
            assert (status, answer["error"]["code"]) == (409, "model_not_loaded")
            assert "beta" in answer["error"]["message"]
            await reloaded(api, running, text.replace("autoload = false", "autoload = true"))
            status, answer = await api.call("POST", "/v1/chat/completions", body)
            assert (status, answer["error"]["code"]) == (503, "model_wait_timeout")


async def test_names_that_are_newly_preloaded_are_loaded(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            await reloaded(api, running, SILENT + 'preload = ["beta"]\n')
            await api.until("/admin/models/beta", lambda model: model["state"] == "ready")
            assert (await api.states())["alpha"] == "unloaded"


async def test_a_clash_of_names_is_told_at_the_start_and_by_the_reload(tmp_path, models_dir, micro_model):
    models = models_dir({"one/m": micro_model, "two/m": micro_model})
    with daemon(tmp_path / "d", models, SILENT) as running:
        async with Api(running.url) as api:
            notes = [event["note"] for event in running.events() if event["event"] == "models.note"]
            assert notes == ["m alone is ambiguous (one/m, two/m); clients must send the full name"]
            diff = await reloaded(api, running, SILENT + entry("one/m", 'aliases = ["TWO/M"]\n'))
            assert diff["notes"] == ["two/m, TWO/M differ in letter case alone; clients must send one of them exactly"]


async def test_a_failed_model_is_tried_again_once_its_entry_changed(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT + entry("m", f'path = "{two / "missing"}"\n')) as running:
        async with Api(running.url) as api:
            status, _ = await api.chat("m")
            assert status == 503
            assert (await api.states())["m"] == "failed"
            await reloaded(api, running, SILENT + entry("m", f'path = "{two / "alpha"}"\n'))
            assert await api.text("m")


async def test_many_reloads_at_once_end_in_the_last_file(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api, api.stream("alpha", **LONG) as stream:
            await stream.content.readline()
            calls = []
            for number in range(10):
                write(running, SILENT + entry("alpha", f'aliases = ["a{number}"]\n'))
                calls.append(asyncio.create_task(api.call(*RELOAD)))
                running.process.send_signal(signal.SIGHUP)
            assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 10
            assert (await api.get("/admin/models/alpha"))["aliases"] == ["a9"]
            assert (await api.states())["alpha"] == "ready"


async def test_a_reload_during_the_shutdown_is_refused_and_keeps_nobody(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            async with api.stream("alpha", max_tokens=600) as stream:
                await stream.content.readline()
                running.process.send_signal(signal.SIGTERM)
                running.process.send_signal(signal.SIGHUP)
                await asyncio.to_thread(running_logs, running, "daemon.stopping")
                status, answer = await api.call(*RELOAD)
                assert (status, answer["error"]["code"]) == (503, "shutting_down")
                assert (await sse(stream))[-1] == "[DONE]"
            assert running.exit_code() == 0


async def test_a_bad_body_is_refused(tmp_path, two):
    with daemon(tmp_path / "d", two, SILENT) as running:
        async with Api(running.url) as api:
            for body in ({"dry": True}, {"dry_run": "yes"}):
                status, answer = await api.call(*RELOAD, body)
                assert (status, answer["error"]["code"]) == (400, "invalid_request")


async def test_a_folder_copied_in_while_another_model_loads_is_served(tmp_path, models_dir, tiny_model, micro_model):
    models = models_dir({"slow": tiny_model})
    held = hold_load(models / "slow")
    with daemon(tmp_path / "d", models, '[models]\nwatch_interval = "100ms"\n') as running:
        async with Api(running.url) as api:
            slow = asyncio.create_task(api.text("slow"))
            await api.until("/admin/models/slow", lambda model: model["state"] == "loading")
            shutil.copytree(micro_model, models / "new")
            await api.until("/admin/models", lambda answer: {m["id"] for m in answer["data"]} == {"new", "slow"})
            assert (await api.get("/v1/models/new"))["id"] == "new"
            assert (await api.states())["slow"] == "loading"
            [decision] = await diff_decisions(api)
            assert (decision["reason"], decision["inputs"]["models"]["added"]) == ("folders", ["new"])
            await asyncio.to_thread(let_go, held)
            assert await slow
            assert await api.text("new")
