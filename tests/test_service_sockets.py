"""The daemon serves on sockets that its service manager listens on, and refuses what is none."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import urllib.request
from contextlib import contextmanager

import pytest
from cli_process import clean_environ
from daemon_process import EXIT_TIMEOUT, MLXD, START_TIMEOUT

from mlxd.daemon.inherited_sockets import NO_SOCKETS, inherited_sockets

# as a service manager does it: the process that becomes the daemon knows its own number
START = 'LISTEN_PID=$$ LISTEN_FDS={count} exec "$@" {descriptors}'


def start(folder, sockets, *arguments, count=None, **variables):
    """`mlxd serve` with these sockets from the descriptor 3 on."""
    moves = " ".join(f"{3 + number}<&{each.fileno()}" for number, each in enumerate(sockets))
    script = START.format(count=len(sockets) if count is None else count, descriptors=moves)
    environ = clean_environ(
        folder, MLXD_SERVER__STATE_DIR=str(folder / "state"), MLXD_MODELS__HF_CACHE="false", **variables
    )
    return subprocess.Popen(
        ["bash", "-c", script, "sh", MLXD, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        pass_fds=[each.fileno() for each in sockets],
    )


@contextmanager
def serving(folder, sockets, *arguments, **variables):
    """The address in the ready line of a daemon that serves until the block ends, cleanly."""
    with start(folder, sockets, *arguments, **variables) as process:
        try:
            readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
            line = process.stdout.readline() if readable else ""
            assert line.startswith("mlxd ready on "), process.communicate(timeout=EXIT_TIMEOUT)
            yield line.split()[-1]
            process.terminate()
            _, errors = process.communicate(timeout=EXIT_TIMEOUT)
            assert (process.returncode, "Traceback" in errors) == (0, False), errors
        finally:
            process.kill()


def refused(folder, sockets, *arguments, **variables):
    """Exit code and last words of a daemon that does not start."""
    with start(folder, sockets, *arguments, **variables) as process:
        _, errors = process.communicate(timeout=EXIT_TIMEOUT)
    return process.returncode, errors


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def health(url):
    with urllib.request.urlopen(f"{url}/health", timeout=EXIT_TIMEOUT) as answer:
        return json.load(answer)["status"]


def over_unix(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(EXIT_TIMEOUT)
        client.connect(str(path))
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        return client.makefile("rb").read()


def test_sockets_of_the_manager_take_the_place_of_the_configured_ones_and_outlive_the_daemon(tmp_path, listener):
    port = listener.getsockname()[1]
    path, own = tmp_path / "passed", tmp_path / "configured"
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        variables = {"MLXD_SERVER__PORT": "1", "MLXD_SERVER__UNIX_SOCKET": str(own)}
        with serving(tmp_path, [listener, unix], "--port", "2", **variables) as url:
            assert url == f"http://127.0.0.1:{port}"
            assert health(url) == "ok"
            assert b'"ok"' in over_unix(path)
            assert not own.exists()
        with socket.create_connection(("127.0.0.1", port)):
            pass  # nobody serves it now, and it waits for the next daemon
        # with no socket for it, the address is the configured one
        with serving(tmp_path, [unix], "--port", "0", MLXD_ENGINE__BLAS="off") as url:
            assert health(url) == "ok"
            assert b'"ok"' in over_unix(path)
        assert path.exists()


def test_an_address_that_others_reach_asks_for_keys_however_it_is_listened_on(tmp_path, listener):
    with socket.create_server(("0.0.0.0", 0)) as wide:
        code, errors = refused(tmp_path, [listener, wide])
    assert (code, "0.0.0.0" in errors, "mlxd key add" in errors) == (78, True, True)


def test_what_is_no_listening_socket_is_refused_with_what_to_change(tmp_path):
    with socket.socket() as deaf:
        code, errors = refused(tmp_path, [deaf])
    assert code == 78
    assert "file descriptor 3 does not listen" in errors
    assert "Accept=no" in errors
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert refused(tmp_path, [datagrams])[0] == 78
    code, errors = refused(tmp_path, [], count=1)
    assert (code, "file descriptor 3" in errors) == (78, True)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "0", "LISTEN_PID": str(os.getpid())},
        {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "x", "LISTEN_PID": str(os.getpid())},
    ],
)
def test_what_is_meant_for_another_process_or_nothing_at_all_is_left_alone(environ):
    assert inherited_sockets(environ, os.getpid()) == NO_SOCKETS
    assert NO_SOCKETS.flags() == {}
