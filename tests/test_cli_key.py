"""`mlxd key` keeps the file of keys, and shows a secret once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial

import pytest
from cli_process import mlxd

from mlxd.daemon.cli.doctor_address import Place, address_checks
from mlxd.daemon.cli.doctor_checks import Level
from mlxd.daemon.cli.doctor_config import read_config
from mlxd.daemon.keys import ApiKey, Scope, find_key, hash_of
from mlxd.daemon.keys_file import add_key, read_keys


@pytest.fixture
def file(tmp_path):
    return tmp_path / ".config" / "mlxd" / "keys.toml"


@pytest.fixture
def key(tmp_path):
    return partial(mlxd, "key", home=tmp_path)


def test_a_key_is_made_listed_and_removed(key, file):
    done = key("add", "ci", "--scope", "infer", "--scope", "read", "--models", "qwen*", "--models", "llama")
    secret = done.stdout.decode().strip()
    assert done.returncode == 0
    [made] = read_keys(file)
    assert find_key([made], secret) == made
    assert (made.scopes, made.models) == ((Scope.INFER, Scope.READ), ("qwen*", "llama"))
    assert secret not in file.read_text()
    assert secret not in done.stderr.decode()

    [row] = json.loads(key("list", "--json").stdout)["data"]
    assert (row["name"], row["scopes"], row["models"]) == ("ci", ["infer", "read"], ["qwen*", "llama"])
    assert set(row) == {"name", "scopes", "models", "created"}
    assert key("list").stdout.decode().splitlines()[1].split()[:4] == ["ci", "infer,", "read", "qwen*,"]

    assert key("rm", "ci").returncode == 0
    assert read_keys(file) == ()


def test_what_cannot_be_done_says_why(key, file):
    assert key("add", "a", "--scope", "admin").returncode == 0
    before = file.read_text()
    for code, says, *args in (
        (1, "there is a key a already", "add", "a", "--scope", "infer"),
        (1, "there is no key 'b'", "rm", "b"),
        (2, "--scope", "add", "b"),
        (2, "'infer', 'read', 'admin'", "add", "b", "--scope", "all"),
        (2, "expected a name of 1 to 64", "add", "../b", "--scope", "infer"),
        (2, "expected a pattern", "add", "b", "--scope", "infer", "--models", ""),
    ):
        done = key(*args)
        assert (done.returncode, done.stdout) == (code, b"")
        assert says in done.stderr.decode()
    assert file.read_text() == before


def test_a_file_or_a_configuration_that_is_not_right_is_78(key, file, tmp_path):
    file.parent.mkdir(parents=True)
    file.write_text("[[key]]\nnome = 1\n")
    file.chmod(0o600)
    for args in (("list",), ("rm", "a"), ("add", "a", "--scope", "read")):
        done = key(*args)
        assert done.returncode == 78
        assert f"{file}:2: key[0].nome: unknown key" in done.stderr.decode()
    file.chmod(0o644)
    assert "chmod" in key("list").stderr.decode()
    assert key("list", MLXD_CONFIG=str(tmp_path / "none")).returncode == 78


def test_the_keys_are_where_the_configuration_says(key, tmp_path):
    config = tmp_path / "other.toml"
    config.write_text('[auth]\nkeys_file = "mine/keys.toml"\n')
    assert key("add", "a", "--scope", "admin", "--config", str(config)).returncode == 0
    assert [made.name for made in read_keys(tmp_path / "mine" / "keys.toml")] == ["a"]
    assert b"there is no key" in key("list").stderr


def test_the_doctor_tells_of_a_file_that_is_not_right_and_of_who_reaches_the_daemon(tmp_path):
    config, keys = tmp_path / "mlxd.toml", tmp_path / "keys.toml"
    config.write_text(f'[server]\nhost = "0.0.0.0"\n[auth]\nkeys_file = "{keys}"\n')
    made = ApiKey("a", (Scope.INFER,), hash_of("a"), datetime.now(UTC))

    def host():
        configured = read_config(config, {"HOME": str(tmp_path)})
        return configured, address_checks(configured.loaded, Place(None))[0]

    configured, rule = host()
    assert (rule.level, "mlxd key add" in rule.found) == (Level.PROBLEM, True)
    add_key(keys, made)
    configured, rule = host()
    assert (rule.level, rule.found) == (Level.OK, "0.0.0.0 is reached from other machines, with an API key")
    keys.chmod(0o644)
    configured, rule = host()
    assert rule.level is Level.PROBLEM
    assert any("others may read" in check.found for check in configured.checks if check.level is Level.PROBLEM)


def test_the_first_key_without_admin_and_the_last_one_are_noted(key):
    assert b"no key has the scope admin" in key("add", "a", "--scope", "infer").stderr
    assert b"no key has" not in key("add", "b", "--scope", "admin").stderr
    assert b"last one" not in key("rm", "b").stderr
    assert b"last one" in key("rm", "a").stderr
