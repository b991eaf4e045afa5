"""Every command against a real daemon: its help, its JSON, and what completes it in a shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import click
import pytest
from cli_process import SCRIPT, clean_environ, mlxd
from daemon_process import daemon
from tiny_models import place_models

from mlxd.daemon.cli.root import COMMANDS, cli

READING = (
    ("list",),
    ("ps",),
    ("show", "m"),
    ("why", "m"),
    ("load", "m", "--dry-run"),
    ("events",),
    ("status",),
    ("reload", "--dry-run"),
    ("config", "show"),
    ("doctor",),
    ("key", "list"),
    ("service", "status"),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory, micro_model):
    folder = tmp_path_factory.mktemp("cli")
    models = place_models(folder / "models", {"m": micro_model, "org/another": micro_model})
    with daemon(folder / "d", models) as running:
        yield running


@pytest.fixture
def run(served, tmp_path):
    def run(*args: str, stdin: bytes = b"", **environ: str):
        return mlxd(*args, home=tmp_path, stdin=stdin, **{"MLXD_URL": served.url, **environ})

    return run


def commands(group: click.Group, path: tuple[str, ...] = ()):
    """Every command with the names that lead to it."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


ALL = dict(commands(cli))


def test_the_table_has_all_commands():
    assert {path[0] for path in ALL} == set(COMMANDS)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_explains_with_an_example_in_eighty_columns(path, run):
    done = run(*path, "--help", COLUMNS="80")
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert max(map(len, text.splitlines())) <= 80
    assert f"Usage: mlxd {' '.join(path)}" in text
    assert "Example" in text, "there is no example"
    assert f"mlxd {' '.join(path)}" in text.partition("Example")[2]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_json_is_json_and_nothing_else(command, run):
    done = run(*command, "--json")
    assert done.returncode in (0, 1), done.stderr  # doctor and status tell of problems with 1
    assert isinstance(json.loads(done.stdout), dict | list)
    assert b"Traceback" not in done.stderr


def test_logs_as_json_are_an_object_a_line(run):
    done = run("logs", "--json")
    assert done.returncode == 0
    assert {"seq", "timestamp", "level", "event"} <= set(json.loads(done.stdout.splitlines()[0]))


def test_text_goes_through_a_pipe(run):
    done = run("run", "m", "--max-tokens", "3", "Say it:", stdin=b"some text")
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell, run):
    done = run("completion", shell)
    assert done.returncode == 0
    assert b"_MLXD_COMPLETE" in done.stdout
    assert run("completion", SHELL=f"/usr/bin/{shell}").stdout == done.stdout


def test_another_shell_is_refused(run):
    assert run("completion", SHELL="/bin/dash").returncode == 2


def test_bash_completes_commands_options_and_models(served, run, tmp_path):
    script = tmp_path / "completion.bash"
    script.write_bytes(run("completion", "bash").stdout)

    def completed(line: str) -> list[str]:
        words = line.split(" ")
        program = (
            f"source {script}; COMP_WORDS=({' '.join(words) or chr(34) * 2}); COMP_CWORD={len(words) - 1}; "
            '_mlxd_completion mlxd; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        environ = clean_environ(tmp_path, MLXD_URL=served.url)
        environ["PATH"] = f"{Path(SCRIPT).parent}:{environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", program], capture_output=True, text=True, env=environ, timeout=30, check=True
        )
        return done.stdout.split()

    assert completed("mlxd lo") == ["load", "logs"]
    assert "--json" in completed("mlxd ps --j")
    assert completed("mlxd show or") == ["org/another"]


def test_models_complete_to_nothing_without_a_daemon(tmp_path):
    environ = {"_MLXD_COMPLETE": "bash_complete", "COMP_WORDS": "mlxd show ", "COMP_CWORD": "2"}
    done = mlxd(home=tmp_path, MLXD_URL="http://127.0.0.1:9", **environ)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"", b"")
