"""`mlxd reload` says what changed, or what is wrong."""

from __future__ import annotations

import json

import pytest
from cli_process import mlxd
from fake_daemon import error

PATH = ("POST", "/admin/reload")
EMPTY = {"added": [], "removed": [], "reloaded": [], "changed": []}


@pytest.fixture
def cli(daemon, tmp_path):
    def cli(*args):
        return mlxd("reload", *args, home=tmp_path, MLXD_URL=daemon.url)

    return cli


def diff(keys=(), notes=(), dry_run=False, **models):
    return {"dry_run": dry_run, "keys": list(keys), "models": EMPTY | models, "notes": list(notes)}


def key(name, old, new, applies):
    return {"key": name, "old": old, "new": new, "applies": applies}


def test_a_change_is_shown_line_by_line(daemon, cli):
    keys = [
        key("model.qwen.ttl", "never", 600, "now"),
        key("server.port", 1, 2, "restart"),
        key("engine.context_length", 0, 9, "reload"),
        key("model.x.repo", "o/x", None, "reload"),
    ]
    models = {"added": ["a", "b"], "removed": ["c"], "reloaded": ["d"], "changed": ["e"]}
    daemon.answers[PATH] = (200, diff(keys, ["m alone is ambiguous"], **models))
    done = cli()
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        'model.qwen.ttl: "never" -> 600',
        "server.port: 1 -> 2 (after a restart)",
        "engine.context_length: 0 -> 9 (its models are loaded again)",
        'model.x.repo: "o/x" -> not set (its models are loaded again)',
        "added: a, b",
        "removed: c",
        "loads again: d",
        "changed: e",
        "note: m alone is ambiguous",
    ]
    assert daemon.asked("POST") == [("/admin/reload", {"dry_run": False})]


def test_a_dry_run_says_so(daemon, cli):
    daemon.answers[PATH] = (200, diff(dry_run=True, added=["a"]))
    done = cli("--dry-run")
    assert done.stdout == b"added: a\nnothing was changed, this was a dry run\n"
    assert daemon.asked("POST") == [("/admin/reload", {"dry_run": True})]


def test_nothing_to_do_is_no_failure(daemon, cli):
    daemon.answers[PATH] = (200, diff())
    done = cli()
    assert (done.returncode, done.stdout) == (0, b"nothing to do\n")


@pytest.mark.parametrize("answer", [{}, {"status": "ok"}, [], diff() | {"models": {}}])
def test_an_answer_that_is_no_diff_is_not_taken_for_nothing_to_do(answer, daemon, cli):
    daemon.answers[PATH] = (200, answer)
    done = cli()
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"the daemon's answer is not as expected" in done.stderr


def test_as_json_it_is_what_the_daemon_says(daemon, cli):
    answer = diff([key("server.port", 1, 2, "restart")])
    daemon.answers[PATH] = (200, answer)
    assert json.loads(cli("--json").stdout) == answer


def test_an_invalid_configuration_has_the_exit_code_and_the_message_of_a_start(daemon, cli):
    problem = {"message": "unknown key", "key": "server.prot", "source": "/m.toml", "line": 2}
    lines = "/m.toml:2: server.prot: unknown key\n/m.toml:9: x: y"
    daemon.answers[PATH] = (400, error("invalid_request", lines, problems=[problem]))
    done = cli()
    assert (done.returncode, done.stdout) == (78, b"")
    assert done.stderr.decode().splitlines() == [f"mlxd: {line}" for line in lines.splitlines()]


@pytest.mark.parametrize("answer", [error("shutting_down", "the daemon is shutting down"), {"error": "odd"}, {}])
def test_another_refusal_is_a_failure(answer, daemon, cli):
    daemon.answers[PATH] = (503, answer)
    done = cli()
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"mlxd: ")
    assert b"Traceback" not in done.stderr


def test_no_daemon_is_not_reachable(tmp_path):
    assert mlxd("reload", "--url", "http://127.0.0.1:9", home=tmp_path).returncode == 69
