"""Keys on a real daemon that other machines can reach: made, used, changed and taken away while it runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from cli_process import mlxd
from daemon_process import Api, chat_body, daemon

from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.daemon.keys_file import add_key, remove_key


def add(file, name, scope, *models):
    add_key(file, ApiKey(name, (scope,), hash_of(f"mlxd-{name}"), datetime.now(UTC), models))


def bearer(name):
    return {"Authorization": f"Bearer mlxd-{name}"}


async def until(api, name, status):
    """Wait until the daemon answers so to this key; it looks at the file every second."""
    end = time.monotonic() + 20
    while (await api.call("GET", "/v1/models", **bearer(name)))[0] != status:
        assert time.monotonic() < end


async def test_a_daemon_that_others_can_reach_asks_for_keys_and_follows_their_file(tmp_path, models_dir, micro_model):
    file, config = tmp_path / "keys.toml", f'[server]\nhost = "0.0.0.0"\n[auth]\nkeys_file = "{tmp_path}/keys.toml"\n'
    models = models_dir({"one": micro_model, "two": micro_model})
    add(file, "boss", Scope.ADMIN)
    add(file, "user", Scope.INFER, "one")
    with daemon(tmp_path / "d", models, config) as running:
        async with Api(running.url) as api:
            assert (await api.call("GET", "/v1/models"))[0] == 401
            assert (await api.call("GET", "/health"))[0] == 200
            chat = ("POST", "/v1/chat/completions")
            assert (await api.call(*chat, chat_body("one", "hi"), **bearer("user")))[0] == 200
            assert (await api.call(*chat, chat_body("two", "hi"), **bearer("user")))[0] == 403
            assert (await api.call("POST", "/admin/models/one/unload", **bearer("user")))[0] == 403

            done = mlxd("list", "--json", home=tmp_path, MLXD_URL=running.url, MLXD_API_KEY="mlxd-boss")
            assert done.returncode == 0
            done = mlxd("list", home=tmp_path, MLXD_URL=running.url)
            assert done.returncode == 1
            assert b"$MLXD_API_KEY" in done.stderr

            add(file, "late", Scope.READ)
            await until(api, "late", 403)
            remove_key(file, "late")
            await until(api, "late", 401)
            add(file, "late", Scope.INFER)
            assert (await api.call("POST", "/admin/reload", **bearer("boss")))[0] == 200
            assert (await api.call("GET", "/v1/models", **bearer("late")))[0] == 200

            kept = file.read_text()
            file.write_text("[[key")
            status, answer = await api.call("POST", "/admin/reload", **bearer("boss"))
            assert (status, answer["error"]["code"]) == (400, "invalid_request")
            assert answer["error"]["details"]["problems"][0]["source"] == str(file)
            assert (await api.call("GET", "/v1/models", **bearer("late")))[0] == 200

            file.unlink()
            await until(api, "late", 401)
            assert (await api.call("GET", "/v1/models"))[0] == 401
            file.write_text(kept)
            file.chmod(0o600)
            await until(api, "late", 200)
        log = running.log.read_text()
    assert "mlxd-" not in log
    events = [line["event"] for line in running.events()]
    assert [line["asks_for_keys"] for line in running.events() if line["event"] == "daemon.ready"] == [True]
    assert events.count("keys.none_left") == 1
    assert events.count("keys.unread") in (0, 1)  # the file was wrong for a moment only


def test_without_a_key_or_with_a_file_that_is_not_right_it_does_not_start(tmp_path):
    config, file = tmp_path / "mlxd.toml", tmp_path / "keys.toml"
    config.write_text(f'[server]\nport = 0\nhost = "0.0.0.0"\n[auth]\nkeys_file = "{file}"\n')
    done = mlxd("serve", "--config", str(config), home=tmp_path, MLXD_ENGINE__BLAS="off")
    assert done.returncode == 78
    assert f"{config}:3: server.host: other machines can reach" in done.stderr.decode()
    file.write_text("[[key]]\n")
    file.chmod(0o600)
    done = mlxd("serve", "--config", str(config), home=tmp_path, MLXD_ENGINE__BLAS="off")
    assert done.returncode == 78
    assert f"{file}:1: key[0]: expected the key name" in done.stderr.decode()
