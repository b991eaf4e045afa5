"""The keys in effect follow their file, and a daemon that had keys never becomes open."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.key_ring import KeyRing
from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.daemon.keys_file import add_key, remove_key


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.toml"


def add(file, name, **fields):
    add_key(file, ApiKey(name, (Scope.INFER,), hash_of(f"secret of {name}"), datetime.now(UTC), **fields))


def found(ring, name):
    key = ring.find(f"secret of {name}")
    return key is not None and key.name == name


async def test_without_any_key_it_is_open_and_the_first_one_closes_it(file):
    ring = KeyRing.read(file)
    assert ring.is_open
    add(file, "a")
    await ring.look()
    assert not ring.is_open
    assert found(ring, "a")


async def test_a_key_holds_until_it_is_removed(file):
    add(file, "a")
    ring = KeyRing.read(file)
    add(file, "b")
    assert not found(ring, "b")
    await ring.look()
    assert found(ring, "b")
    remove_key(file, "a")
    await ring.look()
    assert not found(ring, "a")
    assert found(ring, "b")


@pytest.mark.parametrize("end", ["removed", "emptied", "rm", "folder gone"])
async def test_with_no_key_left_no_key_is_right_and_nothing_is_open(tmp_path, end):
    file = tmp_path / "sub" / "keys.toml"
    add(file, "a")
    ring = KeyRing.read(file)
    await ring.look()
    match end:
        case "removed":
            file.unlink()
        case "emptied":
            file.write_text("")
        case "rm":
            remove_key(file, "a")
        case _:
            file.unlink()
            file.parent.rmdir()
    with capture_logs() as logs:
        await ring.look()
    assert not ring.is_open
    assert not found(ring, "a")
    assert [line["event"] for line in logs] == ["keys.changed", "keys.none_left"]
    add(file, "b")
    await ring.look()
    assert found(ring, "b")


@pytest.mark.parametrize("broken", ["toml", "mode", "folder", "entry"])
async def test_a_file_that_is_not_right_leaves_the_keys_as_they_were_and_is_told_once(file, broken):
    add(file, "a")
    ring = KeyRing.read(file)
    good = file.read_text()
    match broken:
        case "toml":
            file.write_text("[[key")
        case "mode":
            file.chmod(0o644)
        case "folder":
            file.unlink()
            file.mkdir()
        case _:
            file.write_text(good.replace("infer", "all"))
    with capture_logs() as logs:
        for _ in range(3):
            await ring.look()
    assert found(ring, "a")
    assert [line["event"] for line in logs] == ["keys.unread"]
    if broken == "folder":
        file.rmdir()
    file.write_text(good.replace('"a"', '"z"'))
    file.chmod(0o600)
    await ring.look()
    assert ring.find("secret of a").name == "z"


async def test_a_file_that_was_wrong_and_is_gone_then_closes(file):
    add(file, "a")
    ring = KeyRing.read(file)
    file.write_text("[[key")
    await ring.look()
    file.unlink()
    await ring.look()
    assert not found(ring, "a")
    assert not ring.is_open


def test_a_daemon_does_not_start_with_a_file_that_is_not_right(file):
    file.write_text("[[key")
    file.chmod(0o600)
    with pytest.raises(ConfigError):
        KeyRing.read(file)
