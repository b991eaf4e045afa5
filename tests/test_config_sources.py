"""Flags, environment, file and defaults: which comes first, and how each of them is read."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from config_machine import Machine

from mlxd.daemon.config import to_public
from mlxd.daemon.config_env import FLAGS
from mlxd.daemon.config_schema import DRAFT_RULES, dotted_keys
from mlxd.daemon.units import Size


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_flag_comes_before_the_environment_before_the_file_before_the_default(machine):
    text = "[server]\nport = 1"
    environ = {"MLXD_SERVER__PORT": "2"}
    assert machine.load("").settings.server.port == 8484
    assert machine.load(text).settings.server.port == 1
    assert machine.load(text, **environ).settings.server.port == 2
    assert machine.load(text, flags={"port": 3}, **environ).settings.server.port == 3


def test_every_value_knows_where_it_came_from(machine):
    text = '[server]\nhost = "::1"\nport = 1\n[log]\nlevel = "debug"'
    origins = machine.load(text, flags={"port": 0, "host": None}, MLXD_LOG__LEVEL="error").origins
    assert origins["server.host"] == "file"
    assert origins["server.port"] == "flag --port"
    assert origins["log.level"] == "environment MLXD_LOG__LEVEL"
    assert origins["log.format"] == "default"
    assert set(dotted_keys()) <= set(origins)


def test_flags_go_by_parameter_or_by_key(machine, monkeypatch):
    monkeypatch.chdir(machine.home)
    flags = {"models_dir": (Path("here"), "~/there"), "log.format": "json"}
    loaded = machine.load("", flags=flags)
    assert loaded.settings.models.dirs == (machine.home / "here", machine.home / "there")
    assert loaded.origins["models.dirs"] == "flag --models-dir"
    assert loaded.origins["log.format"] == "flag --log-format"
    assert machine.load("", flags={"models_dir": ()}).origins["models.dirs"] == "default"
    with pytest.raises(KeyError):
        machine.load("", flags={"colour": 1})
    assert set(FLAGS.values()) <= set(dotted_keys())


def test_relative_paths_start_at_the_file_that_has_them(machine, monkeypatch):
    (machine.home / "cwd").mkdir()
    monkeypatch.chdir(machine.home / "cwd")
    text = '[models]\ndirs = ["m", "/abs", "~/h", "~"]'
    assert machine.load(text).settings.models.dirs == (
        machine.file.parent / "m",
        Path("/abs"),
        machine.home / "h",
        machine.home,
    )
    assert machine.load(text, MLXD_MODELS__DIRS="m").settings.models.dirs == (machine.home / "cwd" / "m",)


@pytest.mark.parametrize(
    ("variable", "written", "key", "value"),
    [
        ("MLXD_MODELS__HF_CACHE", "false", "models.hf_cache", False),
        ("MLXD_ENGINE__STEP_LOCK", "1", "engine.step_lock", True),
        ("MLXD_MODELS__PRELOAD", "a, b/c", "models.preload", ("a", "b/c")),
        ("MLXD_MODELS__PRELOAD", '["a,b"]', "models.preload", ("a,b",)),
        ("MLXD_MODELS__PRELOAD", "", "models.preload", ()),
        ("MLXD_MODELS__TTL", "90", "models.ttl", 90.0),
        ("MLXD_MODELS__TTL", "never", "models.ttl", None),
        ("MLXD_MEMORY__CEILING", "80%", "memory.ceiling", Size(fraction=0.8)),
        ("MLXD_MEMORY__CEILING", "1000", "memory.ceiling", Size(bytes=1000)),
        ("MLXD_SERVER__MAX_BODY", "1MiB", "server.max_body", 2**20),
        ("MLXD_LOG__LEVEL", "INFO", "log.level", "info"),
        ("MLXD_ENGINE__BLAS", "off", "engine.blas", "off"),
        ("MLXD_ENGINE__BLAS", "/lib/b.so", "engine.blas", Path("/lib/b.so")),
        ("MLXD_LOG__FILE", "", "log.file", None),
    ],
)
def test_the_environment_sets_every_kind_of_key(machine, variable, written, key, value):
    section, name = key.split(".")
    loaded = machine.load("", **{variable: written})
    assert msgspec.structs.asdict(getattr(loaded.settings, section))[name] == value
    assert loaded.origins[key] == f"environment {variable}"


def test_every_key_has_a_variable_that_takes_its_written_default(machine):
    public = to_public(machine.load().settings)
    environ = {}
    for key in dotted_keys():
        section, name = key.split(".")
        value = public[section][name]
        environ[f"MLXD_{section}__{name}".upper()] = value if isinstance(value, str) else json.dumps(value)
    loaded = machine.load("", **environ)
    assert loaded.settings == machine.load("").settings
    assert all(origin.startswith("environment") for origin in loaded.origins.values())


def test_variables_of_others_are_left_alone(machine):
    others = dict.fromkeys(("MLXD_URL", "MLXD_API_KEY", "MLXD_TEST_PROBE", "MLXD_PORT", "XMLXD_A__B"), "x")
    assert machine.load("", **others).settings == machine.load("").settings


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("MLXD_SERVER__PRT", "MLXD_SERVER__PORT"),
        ("MLXD_SERVR__PORT", "MLXD_SERVER__PORT"),
        ("MLXD_SERVER_PORT", "MLXD_SERVER__PORT"),
        ("MLXD_server__port", "MLXD_SERVER__PORT"),
        ("MLXD_ENGINE__MAX_RUNING", "MLXD_ENGINE__MAX_RUNNING"),
    ],
)
def test_an_unknown_variable_names_the_nearest(machine, variable, meant):
    problem = machine.problem("", **{variable: "1"})
    assert str(problem) == f"environment {variable}: unknown variable; did you mean {meant}?"


@pytest.mark.parametrize("key", DRAFT_RULES)
def test_a_key_of_one_model_has_no_variable(machine, key):
    variable = f"MLXD_ENGINE__{key.upper()}"
    problem = machine.problem("", **{variable: "1"})
    assert problem.source == f"environment {variable}"
    assert f"set engine.{key} in its [[model]] entry" in problem.message


def test_a_wrong_value_names_its_variable_or_flag(machine):
    problems = machine.problems("", flags={"port": 65536}, MLXD_LOG__LEVEL="loud", MLXD_MODELS__PRELOAD="[1")
    assert [(problem.source, problem.key) for problem in problems] == [
        ("environment MLXD_LOG__LEVEL", "log.level"),
        ("environment MLXD_MODELS__PRELOAD", "models.preload"),
        ("flag --port", "server.port"),
    ]
