"""A real daemon beside an engine, an event loop or an interpreter that hangs."""

import asyncio
import os
import signal

import pytest
from daemon_process import Api, sse
from hanging_daemon import hanging_daemon

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the faults are pipes")

WATCHED = '[supervision]\nhang_timeout = "1s"\nloop_timeout = "1s"\n'
EXITS = f"{WATCHED}exit_on_hang = true\n"


@pytest.fixture
def models(models_dir, micro_model):
    return models_dir({"alpha": micro_model, "beta": micro_model})


async def told(running, event, times=1):
    """The log's line with this event, once it is there for so many times."""
    async with asyncio.timeout(20):
        while running.log.read_text().count(f'"event": "{event}"') < times:
            assert running.process.poll() is None or event in running.log.read_text(), running.log.read_text()
            await asyncio.sleep(0.02)
    return [each for each in running.events() if each["event"] == event][-1]


async def test_a_hung_engine_fails_alone_and_is_loaded_again(tmp_path, models):
    with hanging_daemon(tmp_path / "d", models, WATCHED) as (running, faults):
        async with Api(running.url) as api:
            await api.text("alpha")
            faults.hold("step-alpha")
            async with api.stream("beta", max_tokens=400) as other:
                status, answer = await api.chat("alpha")
                assert (status, answer["error"]["code"]) == (503, "engine_crashed")
                assert (await sse(other))[-1] == "[DONE]"
            model = await api.get("/admin/models/alpha")
            assert (model["state"], model["error"]["reason"]) == ("failed", "crashed")
            hung = await told(running, "engine.hung")
            assert "in meet" in (tmp_path / hung["dump"]).read_text()
            assert (await api.get("/health/ready"))["status"] == "ready"
            faults.let_go("step-alpha")
            await api.call("POST", "/admin/models/alpha/load", {})
            assert await api.text("alpha")


async def test_with_exit_on_hang_the_daemon_crashes_once_the_others_are_done(tmp_path, models):
    with hanging_daemon(tmp_path / "d", models, EXITS, exit_code=-signal.SIGABRT) as (running, faults):
        async with Api(running.url) as api:
            faults.hold("step-alpha")
            async with api.stream("beta", max_tokens=600) as other:
                await other.content.readline()
                status, _ = await api.chat("alpha")
                assert status == 503
                await told(running, "daemon.stopping")
                status, answer = await api.chat("beta")
                assert (status, answer["error"]["code"]) == (503, "shutting_down")
                assert (await sse(other))[-1] == "[DONE]"
            assert running.exit_code() == -signal.SIGABRT
            assert running.events()[-1]["event"] == "daemon.stopped"
    assert "Fatal Python error" not in running.log.read_text()


async def test_an_event_loop_that_is_stuck_is_told_of_and_a_second_signal_ends_it_at_once(tmp_path, models):
    with hanging_daemon(tmp_path / "d", models, WATCHED, exit_code=1) as (running, faults):
        faults.hold("loop")
        running.process.send_signal(signal.SIGUSR1)
        stuck = await told(running, "watchdog.loop_stuck")
        assert "in meet" in (tmp_path / stuck["dump"]).read_text()
        faults.let_go("loop")
        await told(running, "watchdog.loop_back")
        async with Api(running.url) as api:
            assert (await api.get("/health"))["status"] == "ok"
        faults.hold("loop")
        running.process.send_signal(signal.SIGUSR1)
        await told(running, "watchdog.loop_stuck", times=2)
        running.process.send_signal(signal.SIGTERM)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(5) == 1
        assert running.events()[-1]["event"] == "daemon.exit_now"


async def test_an_interpreter_that_is_held_crashes_the_daemon_and_the_next_one_tells_where(tmp_path, models):
    folder = tmp_path / "d"
    with hanging_daemon(folder, models, EXITS, exit_code=-signal.SIGABRT) as (running, _):
        running.process.send_signal(signal.SIGUSR2)
        assert running.process.wait(10) == -signal.SIGABRT
    with hanging_daemon(folder, models, EXITS, exit_code=-signal.SIGABRT) as (running, faults):
        found = await told(running, "watchdog.found")
        text = (tmp_path / found["dump"]).read_text()
        assert "Fatal Python error: Aborted" in text
        assert "Current thread" in text
        # nor does it stay when only its event loop is stuck
        faults.hold("loop")
        running.process.send_signal(signal.SIGUSR1)
        assert running.process.wait(10) == -signal.SIGABRT
        assert [each["event"] for each in running.events()][-2:] == ["watchdog.loop_stuck", "watchdog.exit"]


async def test_a_daemon_that_was_stopped_for_a_while_goes_on(tmp_path, models):
    with hanging_daemon(tmp_path / "d", models, WATCHED) as (running, _):
        async with Api(running.url) as api, api.stream("alpha", max_tokens=400) as answer:
            await answer.content.readline()
            running.process.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(os.waitpid, running.process.pid, os.WUNTRACED)
            await asyncio.sleep(3)  # nothing happens in it, which is the point
            running.process.send_signal(signal.SIGCONT)
            assert (await sse(answer))[-1] == "[DONE]"
        await told(running, "watchdog.paused")
    assert not {"engine.hung", "watchdog.loop_stuck"} & {each["event"] for each in running.events()}
