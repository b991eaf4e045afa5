"""The [[peer]] entries of a configuration: what they take, and that their keys are not shown."""

import json

import pytest

from mlxd.daemon.catalog import Catalog
from mlxd.daemon.config import ConfigError, describe, load_config, to_public
from mlxd.daemon.config_effect import Applies
from mlxd.daemon.live import InEffect
from mlxd.daemon.reload_diff import reload_diff
from mlxd.daemon.settings import PeerSettings
from mlxd.registry.names import NameTable

ENTRY = '[[peer]]\nname = "studio"\nurl = "http://studio.local:8484"\n'


def load(tmp_path, text):
    file = tmp_path / "mlxd.toml"
    file.write_text(text)
    return load_config({}, {"HOME": str(tmp_path)}, file)


def problems(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return [f"{problem.line}: {problem.key}: {problem.message}" for problem in caught.value.problems]


def test_an_entry_needs_a_name_and_a_url(tmp_path):
    [peer] = load(tmp_path, ENTRY).settings.peer
    assert peer == PeerSettings("studio", "http://studio.local:8484")
    assert problems(tmp_path, "[[peer]]\n") == [
        "1: peer[0].name: expected a name, but there is none",
        "1: peer[0].url: expected a url, but there is none",
    ]


def test_every_key_of_an_entry(tmp_path):
    text = ENTRY + 'key = "mlxd-secret"\nmodels = ["org/*"]\npriority = -2\ntimeout = "never"\n'
    [peer] = load(tmp_path, text).settings.peer
    assert peer == PeerSettings("studio", "http://studio.local:8484", "mlxd-secret", ("org/*",), -2, None)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('name = "a/b"', 'peer."a/b".name: expected a name without a slash, got "a/b"'),
        ('url = "studio.local:8484"', "peer.studio.url: expected the URL of a server without a query"),
        ('url = "ftp://studio.local"', "peer.studio.url: expected the URL of a server without a query"),
        ('url = "http://:8484"', "peer.studio.url: expected the URL of a server without a query"),
        ('url = "http://studio.local:99999"', "peer.studio.url: expected the URL of a server without a query"),
        ('url = "http://studio.local/?a=b"', "peer.studio.url: expected the URL of a server without a query"),
        ('url = "http://me:secret@studio.local"', "peer.studio.url: expected a URL without user and password"),
        ('key = "a b"', "peer.studio.key: expected a key as it is sent"),
        ('key = "ü"', "peer.studio.key: expected a key as it is sent"),
        ('models = [""]', "peer.studio.models: in the array: expected a name of a model or a pattern"),
        ("priority = 1001", "peer.studio.priority: expected an integer from -1000 to 1000, got 1001"),
        ('timeout = "10ms"', "peer.studio.timeout: expected a duration"),
        ("timeot = 3", "peer.studio.timeot: unknown key; did you mean timeout?"),
    ],
)
def test_what_is_wrong_is_told_with_its_peer(tmp_path, line, problem):
    key = line.split(" =")[0]
    kept = [line for line in ENTRY.splitlines() if not line.startswith(f"{key} ")]
    [told] = problems(tmp_path, "\n".join([*kept, line]))
    assert problem in told


@pytest.mark.parametrize(
    "line", ['key = "mlxd-secret "', "key = 123456", 'url = "http://me:secret@a"', 'url = "me:secret@a"']
)
def test_no_message_repeats_what_may_be_a_secret(tmp_path, line):
    kept = [each for each in ENTRY.splitlines() if not each.startswith(line.split(" =")[0])]
    [told] = problems(tmp_path, "\n".join([*kept, line]))
    assert "secret" not in told
    assert "123456" not in told


def test_a_name_is_taken_once(tmp_path):
    [told] = problems(tmp_path, ENTRY + ENTRY)
    assert told == '5: peer.studio.name: expected a name of its own, but "studio" is a peer already'


def test_peers_are_an_array_of_tables(tmp_path):
    assert problems(tmp_path, "peer = 3\n") == ["1: peer: expected [[peer]] entries, got 3"]


def test_a_key_is_not_shown_and_a_changed_one_is_another(tmp_path):
    one, same, other = (load(tmp_path, f'{ENTRY}key = "{key}"\n') for key in ("secret-1", "secret-1", "secret-2"))
    shown = [to_public(loaded.settings)["peer"][0]["key"] for loaded in (one, same, other)]
    assert "secret" not in json.dumps(to_public(one.settings))
    assert "secret" not in json.dumps(describe(one))
    assert shown[0] == shown[1] != shown[2]
    assert shown[0].startswith("*** ")


def test_a_reload_tells_of_peers_by_name_and_applies_at_once(tmp_path):
    catalog = Catalog((), NameTable.build(()))
    states = [
        InEffect(load(tmp_path, text).settings, catalog)
        for text in ("", f'{ENTRY}key = "secret-1"\n', f'{ENTRY}key = "secret-2"\n')
    ]
    came = reload_diff(*states[:2]).keys
    assert [change.key for change in came][:2] == ["peer.studio.name", "peer.studio.url"]
    [changed] = reload_diff(*states[1:]).keys
    assert (changed.key, changed.applies) == ("peer.studio.key", Applies.NOW)
    assert "secret" not in f"{changed.old}{changed.new}"
