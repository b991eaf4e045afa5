"""`mlxd config` agrees with what `mlxd serve` would do."""

from __future__ import annotations

import json

import pytest
from cli_process import mlxd


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mlxd.toml"


@pytest.fixture
def config(file, tmp_path):
    def config(*args, text=None, **extra):
        if text is not None:
            file.write_text(text)
        return mlxd("config", *args, home=tmp_path, **extra)

    return config


def test_a_good_file_is_ok(config, file, tmp_path):
    done = config("check", str(file), text=f'[server]\nport = 1234\n[models]\ndirs = ["{tmp_path}"]\n')
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ok\n", b"")


def test_what_is_odd_about_the_models_is_noted_and_still_ok(config, file, tmp_path):
    for name in ("one/m", "two/m"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    text = f'[models]\ndirs = ["{tmp_path}"]\ndefault = "nobody"\n'
    done = config("check", str(file), text=text)
    assert (done.returncode, done.stdout) == (0, b"ok\n")
    assert done.stderr.decode().splitlines() == [
        f"note: {file}:3: models.default: there is no model 'nobody'",
        "note: m alone is ambiguous (one/m, two/m); clients must send the full name",
    ]


def test_without_any_file_the_defaults_are_ok(config):
    done = config("check")
    assert (done.returncode, done.stdout) == (0, b"ok\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server\n", "not TOML"),
        ('[server]\nhost = "0.0.0.0"\n', "server.host: other machines can reach"),
        ('[engine]\nblas = "/does/not/exist.so"\n', "engine.blas"),
    ],
)
def test_what_serve_would_refuse_is_no_ok(text, says, config, file):
    done = config("check", str(file), text=text)
    assert (done.returncode, done.stdout) == (78, b"")
    assert says in done.stderr.decode()


def test_a_missing_file_is_a_problem(config, file):
    done = config("check", str(file))
    assert done.returncode == 78
    assert f"mlxd: {file}: expected a file".encode() in done.stderr


def test_show_says_where_each_value_came_from(config, file):
    done = config("show", text="[server]\nport = 1234\n", MLXD_CONFIG=str(file), MLXD_LOG__LEVEL="debug")
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.decode().splitlines())
    rows = [line.split() for line in done.stdout.decode().splitlines()]
    assert ["server.port", "1234", "file"] in rows
    assert ["server.max_body", '"64MB"', "default"] in rows
    assert ["log.level", '"debug"', "environment"] in [row[:3] for row in rows]
    assert str(file).encode() in done.stderr


def test_show_as_json_reads_back(config, file):
    shown = json.loads(config("show", "--json", text="[server]\nport = 1234\n", MLXD_CONFIG=str(file)).stdout)
    assert shown["path"] == str(file)
    assert shown["settings"]["server"]["port"] == 1234
    assert shown["origins"]["server.port"] == "file"
