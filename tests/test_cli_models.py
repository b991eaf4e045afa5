"""What `list`, `ps`, `show` and `status` print: all that is known, in 80 columns, in plain text."""

from __future__ import annotations

import json
import time

import pytest
from cli_process import on_terminal
from fake_daemon import GIB, model

LONG = "mlx-community/Qwen3-Coder-480B-A35B-Instruct-1M-Extended-4bit-DWQ"


def lines(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


def test_list_shows_every_model(daemon, cli):
    daemon.models = [
        model("qwen", "ready", aliases=["gpt-4o", "default"]),
        model("org/clip", kind="embedding", weight_bytes=0),
        model("[bold]odd[/bold]", "failed"),
    ]
    assert [line.split() for line in lines(cli("list"))] == [
        ["NAME", "KIND", "SIZE", "STATE", "ALIASES"],
        ["qwen", "text", "1.0", "GiB", "ready", "gpt-4o,", "default"],
        ["org/clip", "embedding", "-", "unloaded"],
        ["[bold]odd[/bold]", "text", "1.0", "GiB", "failed"],
    ]


def test_json_is_the_daemons_own(daemon, cli):
    daemon.models = [model("qwen", "ready", later_field={"é": 1.5})]
    assert json.loads(cli("list", "--json").stdout) == {"data": daemon.models}
    assert (
        cli("list", "--json").stdout.decode()
        == json.dumps({"data": daemon.models}, indent=2, ensure_ascii=False) + "\n"
    )
    assert json.loads(cli("show", "qwen", "--json").stdout) == daemon.models[0]


def test_ps_shows_what_is_in_memory_and_when_it_leaves(daemon, cli):
    daemon.models = [
        model("asleep"),
        model("broken", "failed"),
        model("busy", "ready", leases=2, queued=1, ttl_s=600.0),
        model("idle", "ready", ttl_s=600.0, unload_at=time.time() + 290),
        model("kept", "ready", pinned=True),
        model("stays", "ready"),
        model("late", "ready", ttl_s=1.0, unload_at=time.time() - 3),
        model("coming", "loading", load={"bytes_done": 41, "bytes_total": 100, "eta_s": 3.0}),
        model("next", "queued", queued=1),
    ]
    rows = {line.split()[0]: line.split() for line in lines(cli("ps"))}
    assert list(rows) == ["NAME", "busy", "idle", "kept", "stays", "late", "coming", "next"]
    assert rows["busy"] == ["busy", "ready", "1.5", "GiB", "2", "1", "-"]
    assert rows["idle"][-2] == "in"
    assert rows["idle"][-1].startswith("4m")
    assert rows["kept"][-1] == "pinned"
    assert rows["stays"][-1] == "never"
    assert rows["late"][-2:] == ["in", "0s"]
    assert rows["coming"][:4] == ["coming", "loading", "41%", "-"]
    data = json.loads(cli("ps", "--json").stdout)["data"]
    assert data == [entry for entry in daemon.models if entry["id"] not in ("asleep", "broken")]


def test_tables_fit_80_plain_columns_and_lose_nothing(daemon, cli):
    daemon.models = [
        model(
            LONG,
            "unloading",
            aliases=["an-alias-that-is-long", "b" * 60],
            kind="embedding",
            weight_bytes=1000 * GIB,
            leases=12345,
        ),
        model("模型" * 30, "loading", load={"bytes_done": 1, "bytes_total": 1, "eta_s": None}),
    ]
    daemon.answers["GET", "/admin/requests"] = (200, {"data": [request("r" * 60, model=LONG)]})
    for args in (["list"], ["ps"]):
        done = cli(*args, FORCE_COLOR="1", COLUMNS="200")
        text = done.stdout.decode()
        assert all(len(line) <= 80 for line in lines(done))
        assert "\x1b" not in text
        assert not any("\u2500" <= char <= "\u257f" for char in text)
        first = "".join(line[: line.index("  ") if "  " in line else None] for line in text.splitlines()[1:])
        assert LONG in first
    assert "b" * 10 in cli("list").stdout.decode()


def test_a_terminal_gets_its_own_width(daemon, tmp_path):
    daemon.models = [model(LONG, aliases=["x" * 40])]
    with on_terminal("list", home=tmp_path, MLXD_URL=daemon.url, COLUMNS="160") as shown:
        assert shown.end() == 0
    assert any(LONG in line and "x" * 40 in line for line in shown.text.splitlines())


def test_no_models_is_said_beside_the_output(daemon, cli):
    daemon.models = []
    for command in ("list", "ps"):
        done = cli(command)
        assert (done.returncode, done.stdout) == (0, b"")
        assert b"mlxd " in done.stderr


def test_show_tells_all_of_one_model(daemon, cli):
    failure = {"reason": "stalled", "message": "no bytes for 120 s", "attempts": 2, "retry_at": time.time() + 9}
    counters = {"running": 1, "waiting": 2, "prompt_tokens": 30, "completion_tokens": 4, "cached_tokens": 10}
    daemon.models = [
        model("org/a", "ready", aliases=["x"], ttl_s=90.0, last_used_at=1e9, loaded_at=1e9, error=failure,
              engine=counters | {"decode_tps": 41.25, "heartbeat_age_s": 0.01}),
    ]  # fmt: skip
    shown = cli("show", "org/a").stdout.decode()
    assert [path for path, _ in daemon.asked("GET")] == ["/admin/models/org/a"]
    for part in (
        "org/a",
        "/models/org/a",
        "1.5 GiB",
        "1m30s",
        "no bytes for 120 s (stalled)",
        "41.2 tokens/s",
        "10 cached",
    ):
        assert part in shown


@pytest.mark.parametrize("name", ["a b", "a?b#c", "ü/%41", "..", "a//b", "-x"])
def test_any_name_reaches_the_daemon_as_it_is(name, daemon, cli):
    done = cli("show", "--", name)
    assert done.returncode == 1
    assert b"model_not_found" in done.stderr
    [(path, _)] = daemon.asked("GET")
    assert path == f"/admin/models/{name}"


def test_show_of_an_unknown_model_suggests(daemon, cli):
    done = cli("show", "nope")
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "mlxd: there is no model 'nope' (model_not_found)",
        "mlxd: did you mean qwen?",
    ]


def request(name, **changes):
    base = {"id": name, "model": "qwen", "api": "chat", "state": "decoding", "position": None, "age_s": 12.0}
    tokens = {"prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 5, "decode_tps": 20.0}
    return base | tokens | {"waiting_for": None, "key": None} | changes


@pytest.fixture
def healthy(daemon):
    memory = {
        "footprint_bytes": 3 * GIB, "ceiling_bytes": 24 * GIB, "soft_bytes": 21 * GIB, "limit": "cgroup",
        "pressure": "ok",
        "machine_total_bytes": 64 * GIB, "machine_available_bytes": 40 * GIB,
        "parts": {"weights": 2 * GIB, "kv": 0, "mlx_cache": GIB}, "models": [],
    }  # fmt: skip
    daemon.answers |= {
        ("GET", "/health"): (200, {"status": "ok", "version": "0.1.0", "uptime_s": 3720.5}),
        ("GET", "/health/ready"): (200, {"status": "ready", "reasons": []}),
        ("GET", "/admin/memory"): (200, memory),
        ("GET", "/admin/requests"): (200, {"data": []}),
    }
    return daemon


def test_status_is_one_page(healthy, cli):
    healthy.answers["GET", "/admin/requests"] = (
        200,
        {
            "data": [
                request("r1"),
                request("r2", state="queued", waiting_for="model", decode_tps=None, prompt_tokens=None),
            ]
        },
    )
    page = lines(cli("status"))
    text = "\n".join(page)
    assert page[0] == f"daemon    mlxd 0.1.0 on {healthy.url}, up 1h2m"
    assert page[1] == "ready     yes"
    assert page[2] == "memory    3.0 GiB of 24.0 GiB (12%), limit: cgroup, pressure: ok"
    assert "mlx cache 1.0 GiB" in text
    assert "kv" not in text
    assert "models    1 in memory" in text
    assert "requests  2 queued or running" in text
    assert ["r2", "qwen", "queued", "(model)", "12s", "0+5", "-"] in [line.split() for line in page]


def test_status_counts_the_requests_that_it_leaves_out(healthy, cli):
    healthy.answers["GET", "/admin/requests"] = (200, {"data": [request(f"r{count}") for count in range(12)]})
    page = lines(cli("status"))
    assert page[-1] == "and 2 more, see --json"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"status": "not_ready", "reasons": ["qwen is stuck", "shutting down"]}, "qwen is stuck; shutting down"),
        ({"ready": False}, '{"ready": false}'),
    ],
)
def test_status_fails_and_says_why_when_not_ready(answer, reason, healthy, cli):
    healthy.answers["GET", "/health/ready"] = (503, answer)
    done = cli("status")
    assert done.returncode == 1
    assert f"ready     no: {reason}" in done.stdout.decode().splitlines()
    assert not done.stderr


def test_status_as_json_has_every_answer(healthy, cli):
    page = json.loads(cli("status", "--json").stdout)
    assert page["memory"] == healthy.answers["GET", "/admin/memory"][1]
    assert page["models"] == healthy.models
    assert page["ready"] == {"status": "ready", "reasons": []}
    assert (page["health"]["version"], page["requests"]) == ("0.1.0", [])


def test_fifty_models_fit_into_eighty_columns(daemon, cli):
    states = ["ready", "loading", "draining", "queued", "unloading"]
    daemon.models = [
        model(
            f"{LONG}-{number}",
            states[number % 5],
            leases=number,
            queued=1000 * number,
            resident_bytes=(number + 1) * GIB,
            ttl_s=600.0,
            unload_at=time.time() + 40_000,
            load={"bytes_done": 41, "bytes_total": 100, "eta_s": 3.0} if number % 5 == 1 else None,
        )
        for number in range(50)
    ]
    shown = lines(cli("ps"))
    assert max(map(len, shown)) <= 80
    first = [line.split()[0] for line in shown if line[:1].strip() and not line.startswith("NAME")]
    assert len([name for name in first if name.startswith("mlx-community/")]) == 50
    text = "".join(line.split()[0] for line in shown[1:])
    assert all(f"-{number}" in text for number in range(50))


def test_json_cannot_steer_the_terminal(daemon, cli):
    daemon.models = [model("qwen", path="\x1b[2J \x9b2J \x7f é")]
    done = cli("list", "--json")
    assert json.loads(done.stdout) == {"data": daemon.models}
    assert not set(done.stdout.decode()) & {"\x1b", "\x9b", "\x7f"}


@pytest.mark.parametrize("answer", ["no object", {"data": [{"name": "qwen"}]}, {"data": None}])
def test_what_is_no_daemon_completes_to_nothing(daemon, cli, answer):
    daemon.answers["GET", "/v1/models"] = (200, answer if isinstance(answer, dict) else [answer])
    done = cli(_MLXD_COMPLETE="bash_complete", COMP_WORDS="mlxd show ", COMP_CWORD="2")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"", b"")
