"""The configuration: its defaults, which file counts, and all its problems at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import tomli
from config_machine import Machine

from mlxd.daemon.config import ConfigError, load_config
from mlxd.daemon.config_schema import DRAFT_RULES, MODEL_RULES, MODEL_TABLES, SAMPLING_RULES, SECTIONS
from mlxd.daemon.settings import ModelSettings, SamplingSettings, ServerSettings, Settings
from mlxd.daemon.units import Size

DEFAULTS = """
[server]
host = "127.0.0.1"
port = 8484
unix_socket = ""
allowed_hosts = []
cors_origins = []
max_body = "64MB"
keepalive_interval = "10s"
drain_timeout = "30s"
state_dir = "~/.local/state/mlxd"

[auth]
keys_file = "~/.config/mlxd/keys.toml"

[models]
dirs = ["~/.mlxd/models"]
hf_cache = true
default = ""
autoload = true
preload = []
restore = false
ttl = "never"
watch_interval = "5s"

[residency]
max_loaded = 0
max_loading = 1
queue_size = 256
queue_timeout = "120s"
max_wait = "20s"
min_residency = "0s"
load_stall_timeout = "120s"
unload_timeout = "30s"
retry_backoff = "5s"

[memory]
ceiling = "auto"
soft = "90%"
poll_interval = "500ms"

[engine]
isolation = "thread"
step_lock = false
blas = "auto"
max_running = 32
max_waiting = 256
context_length = 0
max_tokens = 0
prefill_chunk = 2048
max_stall = "250ms"
prefix_cache = "auto"
prefix_cache_disk = "off"

[images]
max_count = 16
max_bytes = "20MB"
max_pixels = 100000000
remote_hosts = []

[supervision]
answer_timeout = "30s"
hang_timeout = "120s"
loop_timeout = "30s"
exit_on_hang = false

[log]
level = "info"
format = "auto"
file = ""
stderr = true
prompts = false
"""


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_documented_defaults_are_the_defaults(machine):
    assert machine.load(DEFAULTS).settings == machine.load().settings


def test_the_documented_keys_are_all_the_keys():
    documented = tomli.loads(DEFAULTS)
    assert {name: set(keys) for name, keys in documented.items()} == {
        name: set(table.rules) for name, table in SECTIONS.items()
    }


def test_every_rule_belongs_to_a_field_and_every_field_has_a_rule():
    for name, table in SECTIONS.items():
        of_one_model = set(DRAFT_RULES) if name == "engine" else set()
        assert set(table.rules) | of_one_model == set(table.kind.__struct_fields__)
        assert not set(table.rules) & of_one_model
    assert set(MODEL_RULES) | MODEL_TABLES == set(ModelSettings.__struct_fields__)
    assert set(SAMPLING_RULES) == set(SamplingSettings.__struct_fields__)


def test_defaults_are_resolved(machine):
    loaded = machine.load().settings
    assert loaded.server == ServerSettings(
        host="127.0.0.1",
        port=8484,
        unix_socket=None,
        allowed_hosts=(),
        cors_origins=(),
        max_body=64_000_000,
        keepalive_interval=10.0,
        drain_timeout=30.0,
        state_dir=machine.home / ".local/state/mlxd",
    )
    assert loaded.auth.keys_file == machine.home / ".config/mlxd/keys.toml"
    assert loaded.models.dirs == (machine.home / ".mlxd/models",)
    assert (loaded.models.ttl, loaded.models.default) == (None, None)
    assert loaded.residency.queue_timeout == 120.0
    assert (loaded.memory.ceiling, loaded.memory.soft) == ("auto", Size(fraction=0.9))
    assert loaded.engine.max_stall == 0.25
    assert loaded.log.file is None


def test_settings_without_a_configuration_have_the_same_defaults(tmp_path):
    empty = tmp_path / "empty.toml"
    empty.touch()
    assert Settings() == load_config({}, {"HOME": str(Path.home()), "MLXD_CONFIG": str(empty)}, None).settings


def test_the_named_file_comes_before_the_variable_before_the_home_folder(machine):
    standard = machine.home / ".config/mlxd/mlxd.toml"
    assert machine.load().path in {None, Path("/etc/mlxd/mlxd.toml")}
    standard.parent.mkdir(parents=True)
    standard.write_text("[server]\nport = 1")
    (machine.home / "two.toml").write_text("[server]\nport = 2")
    (machine.home / "three.toml").write_text("[server]\nport = 3")
    assert (machine.load().path, machine.load().settings.server.port) == (standard, 1)
    assert machine.load(MLXD_CONFIG="").settings.server.port == 1
    assert machine.load(MLXD_CONFIG="~/two.toml").settings.server.port == 2
    both = machine.load(path=machine.home / "three.toml", MLXD_CONFIG="~/two.toml")
    assert both.settings.server.port == 3


@pytest.mark.parametrize("by", ["--config", "$MLXD_CONFIG"])
def test_a_named_file_that_is_missing_is_an_error(machine, by):
    missing = machine.home / "none.toml"
    given = {"path": missing} if by == "--config" else {"MLXD_CONFIG": str(missing)}
    assert str(machine.problem(**given)) == f"{missing}: expected a file, named by {by}, but there is none"


def test_a_file_that_cannot_be_read_is_an_error(machine):
    loop = machine.home / "loop.toml"
    loop.symlink_to(loop)
    assert "cannot be read" in machine.problem(path=loop).message
    standard = machine.home / ".config/mlxd/mlxd.toml"
    standard.parent.mkdir(parents=True)
    standard.symlink_to(loop)
    assert "cannot be read" in machine.problem().message


def folder_at(path):
    path.mkdir()


def socket_at(path):
    os.mknod(path, stat.S_IFSOCK | 0o600)


def device_at(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [folder_at, os.mkfifo, socket_at, device_at])
def test_what_is_no_regular_file_is_refused_at_once(machine, make):
    make(machine.file)
    assert str(machine.problem(path=machine.file)) == f"{machine.file}: expected a regular file"


def test_a_file_of_a_mebibyte_is_read_and_a_larger_one_is_refused(machine):
    machine.file.write_text("#" * 2**20)
    assert machine.load(path=machine.file).path == machine.file
    with machine.file.open("a") as file:
        file.write("\n" * 41)
    assert str(machine.problem(path=machine.file)) == f"{machine.file}: expected at most 1048576 bytes, got 1048617"


def test_a_file_that_is_not_utf8_is_an_error(machine):
    machine.file.write_bytes(b'[server]\nhost = "\xff"')
    assert "expected UTF-8" in machine.problem(path=machine.file).message


def test_a_byte_order_mark_and_carriage_returns_are_taken(machine):
    machine.file.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 5\r\nprot = 1\r\n")
    assert machine.problem(path=machine.file).line == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[server]\nport 1", 2),
        ("[server]\nport = 1\nport = 2", 3),
        ("a = " + "[" * 5000, None),
        ("a = " + "[" * 40 + "]" * 40, None),
        ("a = " + "9" * 5000, None),
    ],
)
def test_text_that_is_not_toml_is_an_error_with_its_line(machine, text, line):
    problem = machine.problem(text)
    assert (problem.line, problem.source) == (line, str(machine.file))


@pytest.mark.parametrize(
    ("text", "key", "line", "reason"),
    [
        ("[sever]", "sever", 1, "did you mean server?"),
        ("[server]\nprot = 1", "server.prot", 2, "did you mean port?"),
        ("[server]\nttl = 1", "server.ttl", 2, "did you mean models.ttl?"),
        ("port = 1", "port", 1, "did you mean server.port?"),
        ("[log]\nzzzz = 1", "log.zzzz", 2, "expected one of file, format, level, prompts, stderr"),
        ('"odd key" = 1', '"odd key"', 1, "unknown key"),
        ('[engine]\ndraft = "a"', "engine.draft", 2, "only in the engine table of a [[model]] entry"),
        ("[engine]\ndraft_tokens = 3", "engine.draft_tokens", 2, "only in the engine table of a [[model]] entry"),
        ("[engine]\nttl = 3", "engine.ttl", 2, "did you mean models.ttl?"),
        ("engine = 1", "engine", 1, "expected a table, got 1"),
        ("server = 1", "server", 1, "expected a table, got 1"),
        ("[[server]]\nport = 1", "server", 1, "expected a table, got an array"),
        ("[[model.presets]]", "model", 1, "expected [[model]] entries, got a table"),
        ('[model]\nname = "a"', "model", 1, "expected [[model]] entries, got a table"),
        ("model = [1]", "model[0]", 1, "expected a table, got 1"),
    ],
)
def test_an_unknown_or_misplaced_key_names_the_right_one(machine, text, key, line, reason):
    problem = machine.problem(text)
    assert (problem.key, problem.line) == (key, line)
    assert reason in problem.message


def test_soft_is_not_above_the_ceiling(machine):
    problem = machine.problem('[memory]\nceiling = "10GiB"\nsoft = "11GiB"')
    assert (problem.key, problem.line) == ("memory.soft", 3)
    assert "expected at most memory.ceiling (10GiB), got 11GiB" in problem.message
    problem = machine.problem('[memory]\nceiling = "10GiB"', MLXD_MEMORY__SOFT="11GiB")
    assert (problem.source, problem.line) == ("environment MLXD_MEMORY__SOFT", None)


def test_all_problems_are_told_at_once_in_the_order_of_the_file(machine):
    text = """
    [log]
    level = "loud"
    [server]
    port = -1
    prot = 1
    [[model]]
    ttl = "x"
    """
    problems = machine.problems(text, MLXD_A__B="1", flags={"host": ""})
    assert [problem.key for problem in problems] == [
        "log.level",
        "server.port",
        "server.prot",
        "model[0].name",
        "model[0].ttl",
        None,
        "server.host",
    ]
    with pytest.raises(ConfigError) as raised:
        machine.load(text)
    assert str(raised.value).splitlines()[0] == (
        f'{machine.file}:3: log.level: expected "debug", "info", "warning" or "error", got "loud"'
    )


def test_a_wrong_value_in_the_file_is_told_even_if_it_is_overridden(machine):
    assert machine.problem("[server]\nport = -1", flags={"port": 1}).line == 2


def test_a_value_is_shown_on_one_short_line(machine):
    problem = machine.problem('[log]\nlevel = "a\\nb' + "x" * 500 + '"')
    assert "\n" not in str(problem)
    assert len(problem.message) < 200
