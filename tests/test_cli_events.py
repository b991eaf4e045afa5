"""`events` shows what was decided, or follows the feed over dropped connections."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import contextmanager

import pytest
from aiohttp import web
from cli_process import SCRIPT, clean_environ, mlxd
from fake_daemon import GIB, HANG, FakeDaemon, error, model, running

from mlxd.daemon.cli.event_lines import EventLines
from mlxd.daemon.cli.failures import CommandFailed

EVICTION = {
    "seq": 2, "at": 1795974613.8, "kind": "evict", "model": "qwen", "reason": "lru", "for_model": "small",
    "for_request": "req-7", "inputs": {"needed_bytes": 2 * GIB, "free_bytes": 0, "idle_s": 0.146, "state": "ready"},
}  # fmt: skip
EVICTED = "evict qwen (lru) for small req-7: needed 2.0 GiB, free 0 B, idle 146ms, state ready"
MEMORY = {"footprint_bytes": GIB, "ceiling_bytes": 4 * GIB, "pressure": "ok", "parts": {}, "models": []}
REQUEST = {"id": "req-7", "model": "qwen", "state": "queued", "position": 1, "waiting_for": "model"}


def event(name, seq, **data):
    return f"id: {seq}\nevent: {name}\ndata: {json.dumps({'seq': seq, **data})}\n\n".encode()


def snapshot(seq):
    return event("snapshot", seq, models=[model("qwen", "ready")], requests=[], memory=MEMORY, decisions=[])


class FeedingDaemon(FakeDaemon):
    """Serves one script for each connection to the feed, the last one ever again; records where readers came from."""

    def __init__(self, *scripts):
        super().__init__()
        self.scripts = list(scripts)
        self.seen = []

    async def handle(self, request):
        if request.path != "/admin/events":
            return await super().handle(request)
        self.seen.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]:
            if piece is HANG:
                return await self._hang()
            await response.write(piece)
        request.transport.abort()
        return response


@contextmanager
def following(daemon, home, *flags):
    """`mlxd events --follow` on this daemon."""
    with running(daemon):
        process = subprocess.Popen(
            [SCRIPT, "events", "--follow", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environ(home, MLXD_URL=daemon.url),
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()


def lines(process, count):
    """So many lines, without their time."""
    return [process.stdout.readline().rstrip("\n").partition("  ")[2] for _ in range(count)]


def interrupted(process):
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def test_the_last_decisions_are_lines(tmp_path):
    with running(FakeDaemon()) as daemon:
        daemon.answers["GET", "/admin/decisions"] = (200, {"data": [EVICTION]})
        done = mlxd("events", home=tmp_path, MLXD_URL=daemon.url, TZ="UTC")
        as_json = mlxd("events", "--json", home=tmp_path, MLXD_URL=daemon.url)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"2026-11-29 17:50:13  {EVICTED}\n"
    assert json.loads(as_json.stdout) == {"data": [EVICTION]}


def test_nothing_decided_is_said_beside_the_output(tmp_path):
    with running(FakeDaemon()) as daemon:
        daemon.answers["GET", "/admin/decisions"] = (200, {"data": []})
        done = mlxd("events", home=tmp_path, MLXD_URL=daemon.url)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"nothing was decided yet" in done.stderr


def test_following_shows_a_line_for_each_event_until_ctrl_c(tmp_path):
    script = [
        snapshot(7),
        b": waiting\n\n",
        event("decision", 8, decision=EVICTION),
        event("model", 9, model=model("qwen", "unloading")),
        event("request", 10, request=REQUEST),
        event("memory", 11, memory=MEMORY | {"pressure": "soft"}),
        HANG,
    ]
    with following(FeedingDaemon(script), tmp_path) as process:
        assert lines(process, 5) == [
            "snapshot  1 models, 1 in memory; 0 requests; memory 1.0 GiB of 4.0 GiB, pressure ok",
            f"decision  {EVICTED}",
            "model     qwen unloading",
            "request   req-7 queued on qwen, waits for its model",
            "memory    1.0 GiB of 4.0 GiB, pressure soft",
        ]
        assert interrupted(process) == (0, "")


def test_following_as_json_is_every_event_on_a_line(tmp_path):
    same = [event("model", seq, model=model("qwen")) for seq in (2, 3)]
    with following(FeedingDaemon([snapshot(1), *same, HANG]), tmp_path, "--json") as process:
        shown = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert interrupted(process) == (0, "")
    assert [(each["event"], each["seq"]) for each in shown] == [("snapshot", 1), ("model", 2), ("model", 3)]
    assert shown[1]["model"] == model("qwen")


def test_a_dropped_connection_is_made_again_from_the_last_event(tmp_path):
    daemon = FeedingDaemon(
        [snapshot(1), event("model", 2, model=model("a"))], [event("model", 3, model=model("b")), HANG]
    )
    with following(daemon, tmp_path) as process:
        assert lines(process, 3)[1:] == ["model     a unloaded", "model     b unloaded"]
        code, said = interrupted(process)
    assert daemon.seen == [None, "2"]
    assert code == 0
    assert said == f"mlxd: lost the connection to {daemon.url}; trying again\n"


def test_a_daemon_that_comes_back_is_followed_again_and_its_absence_is_said_once(tmp_path):
    daemon = FeedingDaemon([snapshot(1)], [], [], [snapshot(2), HANG])
    with following(daemon, tmp_path) as process:
        assert len(lines(process, 2)) == 2
        code, said = interrupted(process)
    assert daemon.seen == [None, "1", "1", "1"]
    assert (code, said.count("trying again")) == (0, 1)


def test_a_daemon_that_is_not_there_at_first_is_not_waited_for(tmp_path):
    with running(FakeDaemon()) as daemon:
        url = daemon.url
    done = mlxd("events", "--follow", home=tmp_path, MLXD_URL=url)
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.startswith(b"mlxd: no daemon answers")


def test_a_refusal_ends_it(tmp_path):
    with running(FakeDaemon()) as daemon:
        daemon.answers["GET", "/admin/events"] = (403, error("forbidden", "this key may not read"))
        done = mlxd("events", "--follow", home=tmp_path, MLXD_URL=daemon.url)
    assert done.returncode == 1
    assert b"this key may not read (forbidden)" in done.stderr


@pytest.mark.parametrize("data", [b"data: x\n\n", b"data: []\n\n", b'data: {"seq": "a"}\n\n'])
def test_what_is_no_feed_is_said_to_be_none(data, tmp_path):
    with following(FeedingDaemon([b"event: model\n" + data, HANG]), tmp_path) as process:
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said.startswith("mlxd: http://127.0.0.1")
    assert "Traceback" not in said


def test_a_line_that_would_say_the_same_again_is_left_out():
    shown = EventLines()
    loading = model("m", "loading", load={"bytes_done": 1, "bytes_total": 100, "eta_s": None})
    assert shown.line("model", {"seq": 1, "model": loading}) == "m loading 1%"
    assert shown.line("model", {"seq": 2, "model": loading | {"last_used_at": 5.0}}) is None
    assert shown.line("model", {"seq": 3, "model": model("other")}) == "other unloaded"
    assert shown.line("model", {"seq": 4, "model": loading}) is None
    assert shown.line("model", {"seq": 5, "model": model("m", "ready", leases=2)}) == (
        "m ready, 1.5 GiB, in use by 2, 0 queued"
    )


def test_what_is_gone_is_said_and_forgotten():
    shown = EventLines()
    for seq in (1, 3):
        assert shown.line("request", {"seq": seq, "request": REQUEST})
        assert shown.line("request", {"seq": seq + 1, "request": {"id": "req-7", "ended": True}}) == ("req-7 ended")
    assert shown.line("model", {"seq": 5, "model": {"id": "m", "removed": True}}) == "m was removed"


def test_a_failed_model_says_why():
    failed = model("m", "failed", error={"reason": "stalled", "message": "no bytes", "attempts": 1, "retry_at": 2.0})
    assert EventLines().line("model", {"seq": 1, "model": failed}) == "m failed, no bytes (stalled)"


def test_an_event_of_a_later_version_is_passed_over_and_a_broken_one_is_not():
    assert EventLines().line("weather", {"seq": 1, "weather": {}}) is None
    with pytest.raises(CommandFailed, match="not as expected"):
        EventLines().line("model", {"seq": 1})


def test_lists_among_the_inputs_of_a_decision_are_named_or_counted():
    inputs = {"keys": [{"key": "x"}, {"key": "y"}], "models": {"added": [], "removed": ["a", "b"]}, "note": None}
    decision = {"at": 1.0, "kind": "reload", "reason": "operator", "inputs": inputs}
    assert EventLines().line("decision", {"seq": 1, "decision": decision}) == ("reload (operator): 2 keys, removed a b")
