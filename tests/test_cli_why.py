"""`why` and `load --dry-run` say what would happen, who is in the way and how long it takes."""

from __future__ import annotations

import json

import pytest
from fake_daemon import GIB, error

HELP = "`mlxd show qwen` has the reason, and `mlxd load qwen` tries it at once"
ROOM = "it needs 2.0 GiB, and 1.0 GiB are free"


def plan(verdict, **changes):
    """A plan as the daemon answers it."""
    return {
        "model": "qwen", "verdict": verdict, "needed_bytes": 2 * GIB, "free_bytes": GIB, "evicts": [], "waits_for": [],
        "blocked_by": [], "eta_s": None,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "sentences"),
    [
        (plan("ready", eta_s=0.0), ["qwen is in memory and answers at once."]),
        (
            plan("loads", eta_s=8.25),
            [f"qwen loads at once: {ROOM}.", "It would be ready in about 8.2s."],
        ),
        (
            plan("loads_after_eviction", evicts=["a", "b", "c"]),
            [f"qwen loads once a, b and c left memory: {ROOM}."],
        ),
        (
            plan("waits", waits_for=["a"], blocked_by=[{"id": "a", "why": "leased"}, {"id": "b", "why": "pinned"}]),
            [
                f"qwen waits for a: {ROOM}.",
                "a cannot leave: requests use it.",
                "b cannot leave: it is pinned (`mlxd unpin b`).",
            ],
        ),
        (plan("waits", waits_for=["qwen"]), [f"qwen waits until it has left memory or is loaded: {ROOM}."]),
        (plan("waits", free_bytes=-5), ["qwen waits: it needs 2.0 GiB, and 0 B are free."]),
        (
            plan("never_fits", blocked_by=[{"id": "a", "why": "min_residency"}]),
            [
                f"qwen does not fit, whoever else leaves: {ROOM}.",
                "a cannot leave: it was loaded only just now (residency.min_residency).",
            ],
        ),
        (
            plan("backing_off"),
            [f"qwen could not be loaded and is not tried again yet: {HELP}."],
        ),
        (
            plan("autoload_off"),
            ["qwen is not in memory, and requests may not load it: `mlxd load qwen` does."],
        ),
        (plan("later_verdict"), [f"qwen: later_verdict; {ROOM}."]),
    ],
)
def test_why_says_it_in_sentences(answer, sentences, daemon, cli):
    daemon.answers["GET", "/admin/explain/qwen"] = (200, answer)
    done = cli("why", "qwen")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == sentences


def test_json_is_the_daemons_own_plan(daemon, cli):
    answer = plan("loads", later_field=1)
    daemon.answers["GET", "/admin/explain/org/qwen"] = (200, answer)
    daemon.answers["POST", "/admin/models/org/qwen/load"] = (200, answer)
    for args in (["why", "org/qwen"], ["load", "org/qwen", "--dry-run"]):
        done = cli(*args, "--json")
        assert (done.returncode, json.loads(done.stdout)) == (0, answer)


def test_a_dry_run_sends_what_was_given_and_tells_the_plan(daemon, cli):
    daemon.answers["POST", "/admin/models/qwen/load"] = (200, plan("loads"))
    done = cli("load", "qwen", "--dry-run", "--pin", "--ttl", "5m")
    assert (done.returncode, done.stdout.decode()) == (0, f"qwen loads at once: {ROOM}.\n")
    body = {"wait": True, "pin": True, "ttl": 300.0, "dry_run": True}
    assert daemon.asked("POST") == [("/admin/models/qwen/load", body)]


def test_a_model_that_is_unknown_is_a_failure(daemon, cli):
    daemon.answers["GET", "/admin/explain/qwem"] = (404, error("model_not_found", "there is no model 'qwem'"))
    done = cli("why", "qwem")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"mlxd: there is no model 'qwem' (model_not_found)\n"
