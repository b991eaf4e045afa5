"""What holds for all commands: help, exit codes, finding the daemon, failures without tracebacks."""

from __future__ import annotations

import socket
import subprocess
import sys

import click
import pytest
from cli_process import SCRIPT, clean_environ, mlxd
from fake_daemon import error

from mlxd.daemon.cli.root import COMMANDS, cli

READING = ["list", "ps", "show", "status", "why", "events"]


def commands():
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", child) for sub, child in command.commands.items())


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_every_command_has_help_with_an_example():
    for name, command in commands():
        assert command.help, name
        assert "Example" in command.epilog, name
        assert f"mlxd {name}" in command.epilog, name


def test_the_overview_says_what_the_commands_say():
    for name, command in commands():
        if name in COMMANDS:
            assert command.help.splitlines()[0] == COMMANDS[name].summary


def test_every_command_that_reads_has_json():
    flags = {name: {option for p in command.params for option in p.opts} for name, command in commands()}
    assert all("--json" in flags[name] for name in [*READING, "config show"])


def test_help_imports_no_heavy_library():
    code = (
        "import sys, runpy\nsys.argv = ['mlxd', '--help']\n"
        "try: runpy.run_module('mlxd.daemon', run_name='__main__')\nexcept SystemExit as end: assert not end.code\n"
        "heavy = {'aiohttp', 'rich', 'asyncio', 'msgspec', 'mlx', 'mlx_lm', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("Usage: mlxd")
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_command_imports_mlx_for_its_help():
    code = (
        "import sys, click\nfrom mlxd.daemon.cli.root import COMMANDS, cli\n"
        "for name in COMMANDS: cli.get_command(click.Context(cli), name)\n"
        "print(sorted({'aiohttp', 'rich', 'mlx', 'mlx_lm', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["laod", "x"], b"Did you mean 'load'?"),
        (["frob", "x"], b"No such command 'frob'"),
        (["serve", "--port", "65536"], b"--port"),
        (["show"], b"MODEL"),
        (["show", ""], b"expected text"),
        (["show", b"\xff"], b"UTF-8"),
        (["run", "m", "hi", "--temperature", "nan"], b"finite"),
        (["run", "m", "hi", "--max-tokens", "0"], b"--max-tokens"),
        (["run", "m"], b"expected PROMPT"),
        (["load", "m", "--ttl", "5y"], b"--ttl"),
        (["unload", "m", "--timeout", "never"], b"--timeout"),
        (["list", "--url", "ftp://box"], b"expected an address"),
        (["list", "--url", "http://box:70000"], b"expected an address"),
        (["list", "--url", "http://user:secret@box"], b"$MLXD_API_KEY"),
        (["import", "/does/not/exist.gguf", "--name", "x"], b"does not exist"),
    ],
)
def test_bad_usage_exits_2(args, says, tmp_path):
    done = mlxd(*args, home=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("args", [["list"], ["status"], ["load", "m"], ["run", "m", "hi"], ["show", "m", "--json"]])
def test_a_daemon_that_is_not_there_exits_69(args, tmp_path):
    url = f"http://127.0.0.1:{closed_port()}"
    done = mlxd(*args, home=tmp_path, MLXD_URL=url)
    assert done.returncode == 69
    assert done.stderr.startswith(f"mlxd: no daemon answers at {url} (Connection refused); start it with".encode())
    assert b"Traceback" not in done.stderr


def test_the_configuration_says_where_the_daemon_is(daemon, tmp_path):
    port = daemon.url.rpartition(":")[2]
    done = mlxd("list", home=tmp_path, MLXD_SERVER__PORT=port, MLXD_SERVER__HOST="0.0.0.0")
    assert done.returncode == 0, done.stderr
    assert b"qwen" in done.stdout


def test_the_flag_wins_over_the_variable_and_the_key_is_sent(daemon, tmp_path):
    url = daemon.url.removeprefix("http://")
    done = mlxd("list", "--url", f"{url}/", home=tmp_path, MLXD_URL="http://127.0.0.1:9", MLXD_API_KEY="s3cret\n")
    assert done.returncode == 0, done.stderr
    assert daemon.requests == [("GET", "/admin/models", None, "Bearer s3cret")]


def test_an_invalid_configuration_exits_78_with_every_problem(tmp_path):
    file = tmp_path / "mlxd.toml"
    file.write_text("[server]\nprot = 1\n[models]\nttl = 'soon'\n")
    for args in (["list"], ["serve", "--config", str(file)], ["config", "check", str(file)], ["config", "show"]):
        done = mlxd(*args, home=tmp_path, MLXD_CONFIG=str(file))
        assert done.returncode == 78, args
        lines = done.stderr.decode().splitlines()
        assert all(line.startswith("mlxd: ") for line in lines)
        assert lines[0] == f"mlxd: {file}:2: server.prot: unknown key; did you mean port?"
        assert lines[1].startswith(f'mlxd: {file}:4: models.ttl: expected "never"')


def test_a_bad_flag_value_of_serve_exits_78(tmp_path):
    done = mlxd("serve", "--host", "not a host", home=tmp_path)
    assert done.returncode == 78
    assert b"--host" in done.stderr


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, error("invalid_api_key", "no such key")), "mlxd: no such key (invalid_api_key)\nmlxd: put a valid key"),
        ((500, error("internal_error", "a bug in request r1")), "mlxd: a bug in request r1 (internal_error)\n"),
        ((500, {"detail": "?"}), "answered 500 without saying why"),
        ((404, "<html>"), "answered 404 without JSON; is that mlxd?"),
        ((200, "[1, 2"), "answered 200 without JSON; is that mlxd?"),
        ((302, "{}"), "answered 302 without JSON"),
        ((200, {"models": []}), "the daemon's answer is not as expected"),
        ((200, [1]), "the daemon's answer is not as expected"),
    ],
)
def test_an_answer_that_is_no_answer_fails_with_a_message(answer, says, daemon, tmp_path):
    daemon.answers["GET", "/admin/models"] = answer
    done = mlxd("list", home=tmp_path, MLXD_URL=daemon.url)
    assert done.returncode == 1
    assert says in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert not done.stdout


def test_control_sequences_in_an_error_do_not_reach_the_terminal(daemon, tmp_path):
    daemon.answers["GET", "/admin/models"] = (400, error("x", "\x1b[2Jgone\x07"))
    done = mlxd("list", home=tmp_path, MLXD_URL=daemon.url)
    assert done.stderr == b"mlxd: [2Jgone (x)\n"


def test_something_else_that_listens_there_is_told_apart(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(30)
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        process = subprocess.Popen([SCRIPT, "list", "--url", url], stderr=subprocess.PIPE, env=clean_environ(tmp_path))
        connection, _ = other.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"220 mail.example ESMTP\r\n")
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"is that mlxd?" in said
    assert b"Traceback" not in said


def test_output_that_nobody_reads_or_that_does_not_fit_is_no_traceback(daemon, tmp_path):
    daemon.models = daemon.models * 1500
    command = f"{SCRIPT} list | head -1; {SCRIPT} list >/dev/full; echo $?"
    environ = clean_environ(tmp_path, MLXD_URL=daemon.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, env=environ, timeout=60, check=True)
    assert done.stdout.endswith(b"1\n")
    assert done.stderr == b"mlxd: No space left on device\n"


def test_closed_streams_are_no_traceback(daemon, tmp_path):
    command = f"{SCRIPT} list >&-; echo $?; {SCRIPT} show nope >&- 2>&-; echo $?; {SCRIPT} run qwen <&-; echo $?"
    environ = clean_environ(tmp_path, MLXD_URL=daemon.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, env=environ, timeout=60, check=True)
    assert done.stdout == b"0\n1\n2\n"
    assert b"Traceback" not in done.stderr


def test_the_module_is_the_same_command():
    command = [sys.executable, "-m", "mlxd.daemon", "--version"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert done.stdout.startswith(b"mlxd ")
