"""The file of keys: what is taken and what is refused, and that nobody sees half of it."""

from __future__ import annotations

import os
import stat
import threading
from datetime import UTC, datetime

import pytest

from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.daemon.keys_file import MAX_KEYS, KeyNameTaken, NoSuchKey, TooManyKeys, add_key, read_keys, remove_key

HASH = hash_of("secret")
GOOD = f'[[key]]\nname = "laptop"\nscopes = ["infer"]\nhash = "{HASH}"\ncreated = 2026-01-02T03:04:05Z\n'


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.toml"


def made(name="laptop", **fields):
    created = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return ApiKey(**{"name": name, "scopes": (Scope.INFER,), "hash": hash_of(name), "created": created} | fields)


def written(file, text, mode=0o600):
    file.write_text(text)
    file.chmod(mode)
    return file


def refusal(file):
    with pytest.raises(ConfigError) as caught:
        read_keys(file)
    return str(caught.value)


def test_what_was_added_is_read_again(file):
    first = made(scopes=(Scope.READ, Scope.ADMIN), models=("qwen*", 'a"\\[ü]'))
    add_key(file, first)
    assert add_key(file, made("other")) == (first, made("other"))
    assert read_keys(file) == (first, made("other"))
    assert remove_key(file, "laptop") == (made("other"),)
    assert read_keys(file) == (made("other"),)


def test_no_file_has_no_keys(file):
    assert read_keys(file) == ()
    assert read_keys(file / "below") == ()
    assert read_keys(written(file, "")) == ()


def test_the_file_is_its_owners_alone_and_so_is_a_folder_made_for_it(tmp_path):
    file = tmp_path / "new" / "keys.toml"
    add_key(file, made())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o777])
def test_a_file_that_others_can_open_is_refused(file, mode):
    assert f"{file}: others may read or change it" in refusal(written(file, GOOD, mode))
    with pytest.raises(ConfigError):
        add_key(file, made("other"))
    assert file.read_text() == GOOD


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(file):
    written(file, GOOD)
    os.chown(file, 12345, -1)
    assert "a file of your own" in refusal(file)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[key]]\nname = ", ":2: not TOML"),
        (GOOD.replace("name", "nome"), ":2: key[0].nome: unknown key; did you mean name?"),
        (GOOD.replace("infer", "infre"), ':3: key[0].scopes: in the array: expected "infer", "read" or "admin"'),
        (GOOD.replace('["infer"]', "[]"), ":3: key[0].scopes: expected at least one entry"),
        (GOOD.replace('["infer"]', '"infer"'), ":3: key[0].scopes: expected an array"),
        (GOOD + "models = []\n", ":6: key[0].models: expected at least one entry, or not this key"),
        (GOOD + 'models = ["a b"]\n', ":6: key[0].models: in the array: expected a pattern without spaces"),
        (GOOD + 'models = [""]\n', ":6: key[0].models"),
        (GOOD.replace('"laptop"', '"lap top"'), ":2: key[0].name: expected a name of 1 to 64"),
        (GOOD.replace("2026-01-02T03:04:05Z", '"today"'), ":5: key[0].created: expected a date and time"),
        (GOOD.replace(f'hash = "{HASH}"\n', ""), ":1: key[0]: expected the key hash in every entry"),
        (GOOD + GOOD, "expected every name once, got laptop twice"),
        (GOOD + GOOD.replace("laptop", "other"), "but other has that of another key"),
        ("[key]\nname = 1\n", ":1: key: expected [[key]] entries"),
        ("key = [1]\n", ":1: key: expected [[key]] entries"),
        ("[[keys]]\n", ":1: keys: unknown key; did you mean key?"),
        (GOOD * (MAX_KEYS + 1), f"expected at most {MAX_KEYS} keys, got {MAX_KEYS + 1}"),
        ("a = " + "[" * 5000, "expected at most"),
        ("#" * 2**20 + "\n", "expected at most 1048576 bytes"),
    ],
)
def test_a_file_that_is_not_right_says_where(file, text, says):
    assert f"{file}" in refusal(written(file, text))
    assert says in refusal(file)


@pytest.mark.parametrize("value", ['"mlxd-my-own-secret"', '["mlxd-my-own-secret"]', f'"{HASH.upper()}"', '""'])
def test_a_secret_in_the_place_of_its_hash_is_refused_and_not_shown(file, value):
    said = refusal(written(file, GOOD.replace(f'"{HASH}"', value)))
    assert ":4: key[0].hash: expected" in said
    assert "my-own" not in said


def test_what_is_no_regular_file_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        assert "expected a regular file" in refusal(tmp_path / name)


def test_a_link_leads_to_the_file_and_stays_one(tmp_path, file):
    target = tmp_path / "elsewhere" / "mine.toml"
    file.symlink_to(target)
    assert read_keys(file) == ()
    add_key(file, made())
    assert file.is_symlink()
    assert read_keys(target) == (made(),)


def test_a_name_is_taken_once_and_removed_once(file):
    with pytest.raises(NoSuchKey):
        remove_key(file, "laptop")
    add_key(file, made())
    before = file.read_text()
    with pytest.raises(KeyNameTaken):
        add_key(file, made(hash=hash_of("another")))
    with pytest.raises(NoSuchKey):
        remove_key(file, "other")
    assert file.read_text() == before


def test_no_key_is_added_with_which_the_file_could_not_be_read_any_more(file):
    full = "".join(
        GOOD.replace("laptop", f"k{number}").replace(HASH, hash_of(str(number))) for number in range(MAX_KEYS)
    )
    written(file, full)
    with pytest.raises(TooManyKeys, match="has 1000 keys"):
        add_key(file, made())
    assert file.read_text() == full
    remove_key(file, "k0")
    add_key(file, made())
    assert len(read_keys(file)) == MAX_KEYS
    file.unlink()
    add_key(file, made())
    with pytest.raises(TooManyKeys, match="at most 1048576 are read"):
        add_key(file, made("other", models=("x" * 200,) * 6000))
    assert read_keys(file) == (made(),)
    assert list(file.parent.iterdir()) == [file]


def test_writers_at_the_same_time_lose_nothing(file):
    threads = [threading.Thread(target=add_key, args=(file, made(f"key-{number}"))) for number in range(20)]
    for thread in threads:
        thread.start()
    seen = {len(read_keys(file)) for thread in threads if not thread.join()}
    assert {key.name for key in read_keys(file)} == {f"key-{number}" for number in range(20)}
    assert max(seen) == 20


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(file):
    add_key(file, made())
    before = file.read_text()
    with pytest.raises(UnicodeEncodeError):
        add_key(file, made("other", models=("\ud800",)))
    assert file.read_text() == before
    assert list(file.parent.iterdir()) == [file]
