"""`load`, `unload`, `pin` and `unpin` ask the daemon and say what happened."""

from __future__ import annotations

import json
import subprocess

import pytest
from cli_process import SCRIPT, clean_environ, on_terminal
from fake_daemon import GIB, HANG, error, model


@pytest.mark.parametrize(
    ("flags", "body"),
    [
        ([], {"wait": True}),
        (["--pin"], {"wait": True, "pin": True}),
        (["--ttl", "1h30m"], {"wait": True, "ttl": 5400.0}),
        (["--ttl", "never"], {"wait": True, "ttl": "never"}),
    ],
)
def test_load_sends_what_was_given(flags, body, daemon, cli):
    daemon.answers["POST", "/admin/models/org/a/load"] = (200, model("org/a", "ready", pinned="--pin" in flags))
    done = cli("load", "org/a", *flags)
    assert daemon.asked("POST") == [("/admin/models/org/a/load", body)]
    pinned = ", pinned" if "--pin" in flags else ""
    assert done.stdout.decode() == f"org/a is ready, 1.5 GiB, loaded in 3.2s{pinned}\n"
    assert (done.returncode, done.stderr) == (0, b"")
    assert not daemon.asked("GET"), "nothing polls when nobody watches"


def test_a_failed_load_fails(daemon, cli):
    refusal = error("model_load_failed", "model qwen could not be loaded (stalled): no bytes", reason="stalled")
    daemon.answers["POST", "/admin/models/qwen/load"] = (503, refusal)
    done = cli("load", "qwen")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"mlxd: model qwen could not be loaded (stalled): no bytes (model_load_failed)\n"


def test_a_load_shows_its_progress_on_a_terminal_and_ctrl_c_cancels_it(daemon, tmp_path):
    progress = {"bytes_done": GIB // 2, "bytes_total": GIB, "eta_s": 3.0}
    daemon.models = [model("[red]qwen", "loading", load=progress)]
    daemon.answers["POST", "/admin/models/[red]qwen/load"] = (200, HANG)
    daemon.answers["DELETE", "/admin/models/[red]qwen/load"] = (200, model("[red]qwen"))
    with on_terminal("load", "[red]qwen", home=tmp_path, MLXD_URL=daemon.url) as shown:
        shown.wait_for("eta 3s")
        assert "[red]qwen loading" in shown.text
        assert "0.5/1.0 GiB" in shown.text
        shown.interrupt()
        assert shown.end() == 1
    assert daemon.asked("DELETE") == [("/admin/models/[red]qwen/load", None)]
    assert daemon.client_left.wait(10)
    assert "mlxd: cancelled the load of [red]qwen" in shown.text
    assert "Traceback" not in shown.text


def test_the_bar_survives_a_model_that_cannot_be_looked_at(daemon, tmp_path):
    daemon.models = []
    daemon.answers["POST", "/admin/models/qwen/load"] = (200, model("qwen", "ready"))
    with on_terminal("load", "qwen", home=tmp_path, MLXD_URL=daemon.url) as shown:
        assert shown.end() == 0
    assert "qwen is ready" in shown.text


def test_ctrl_c_cancels_a_load_that_nobody_watches(daemon, tmp_path):
    daemon.answers["POST", "/admin/models/qwen/load"] = (200, HANG)
    daemon.answers["DELETE", "/admin/models/qwen/load"] = (409, error("invalid_request", "there is no load to cancel"))
    environ = clean_environ(tmp_path, MLXD_URL=daemon.url)
    process = subprocess.Popen([SCRIPT, "load", "qwen"], stderr=subprocess.PIPE, env=environ)
    assert daemon.arrived.wait(30)
    process.send_signal(2)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert daemon.asked("DELETE") == [("/admin/models/qwen/load", None)]
    assert said.decode().split("\n")[0] == "mlxd: there is no load to cancel (invalid_request)"


@pytest.mark.parametrize(
    ("flags", "body"),
    [
        ([], {"mode": "drain"}),
        (["--mode", "force"], {"mode": "force"}),
        (["--timeout", "1m"], {"mode": "drain", "timeout": 60.0}),
    ],
)
def test_unload_prints_what_was_freed(flags, body, daemon, cli):
    daemon.answers["POST", "/admin/models/qwen/unload"] = (200, model("qwen") | {"freed_bytes": GIB})
    done = cli("unload", "qwen", *flags)
    assert (done.returncode, done.stdout) == (0, b"unloaded qwen, freed 1.0 GiB\n")
    assert daemon.asked("POST") == [("/admin/models/qwen/unload", body)]


def test_unload_of_a_model_that_is_not_in_memory_is_no_failure(daemon, cli):
    daemon.answers["POST", "/admin/models/qwen/unload"] = (200, model("qwen") | {"freed_bytes": 0})
    done = cli("unload", "qwen")
    assert (done.returncode, done.stdout) == (0, b"qwen is not in memory, nothing to free\n")


@pytest.mark.parametrize(("command", "pinned", "says"), [("pin", True, "pinned"), ("unpin", False, "not pinned")])
def test_pinning_changes_the_model(command, pinned, says, daemon, cli):
    daemon.answers["PATCH", "/admin/models/qwen"] = (200, model("qwen", pinned=pinned))
    done = cli(command, "qwen")
    assert (done.returncode, done.stdout.decode()) == (0, f"qwen is {says} and unloaded\n")
    assert daemon.asked("PATCH") == [("/admin/models/qwen", {"pinned": pinned})]


def test_a_load_as_json_is_the_daemons_own_model(daemon, cli):
    loaded = model("qwen", "ready", later_field=1)
    daemon.answers["POST", "/admin/models/qwen/load"] = (200, loaded)
    done = cli("load", "qwen", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, loaded)
