"""docs/security.md says what is asked for and bounded: its tables and examples are compared with the code."""

from __future__ import annotations

import inspect
import re
import shlex

from aiohttp import web
from click.testing import CliRunner
from doc_pages import blocks, page, rows, words

from mlxd.daemon.api.application import PARTS
from mlxd.daemon.api.body import BODY_STALL, LEAST_RATE, MAX_CONTAINERS, MAX_DEPTH, RATE_GRACE
from mlxd.daemon.api.failed_attempts import WINDOW
from mlxd.daemon.api.image_fetch import FETCH_TIMEOUT, MAX_REDIRECTS
from mlxd.daemon.api.server import SPARE_FILES, Patience
from mlxd.daemon.api.sse import WRITE_TIMEOUT
from mlxd.daemon.cli.root import cli
from mlxd.daemon.key_ring import LOOK_INTERVAL
from mlxd.daemon.keys import Scope
from mlxd.daemon.keys_file import read_keys

TEXT = page("security")


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def test_the_bounds_are_those_of_the_code():
    bounds = {what: numbers(bound) for what, bound in rows(TEXT, "Bounds")}
    aiohttp = inspect.signature(web.RequestHandler).parameters
    assert aiohttp["max_line_size"].default == aiohttp["max_field_size"].default
    assert bounds == {
        "a connection without a request": [Patience().idle],
        "the head of a request, from its first byte": [Patience().head],
        "the request line, and each header": [aiohttp["max_line_size"].default],
        "headers": [aiohttp["max_headers"].default],
        "a body": [],
        "a body's pace": [BODY_STALL, RATE_GRACE, LEAST_RATE],
        "JSON": [MAX_DEPTH, MAX_CONTAINERS],
        "connections": [SPARE_FILES],
        "a client that reads nothing of its answer": [WRITE_TIMEOUT],
        "the fetch of an image": [FETCH_TIMEOUT, MAX_REDIRECTS],
        "images of a request": [],
    }
    assert (LOOK_INTERVAL, WINDOW) == (1, 60)
    assert "every second" in TEXT
    assert "one a minute" in TEXT


def test_the_scopes_are_those_of_keys():
    assert [words(scope)[0] for scope, _ in rows(TEXT, "Keys")] == list(Scope)


def test_the_open_calls_are_named():
    named = set(re.findall(r"`GET (/health\S*)`", TEXT))
    assert named <= {route.path for part in PARTS for route in part.routes() if route.scope is None}
    assert len(named) == 2


def test_the_example_of_a_file_is_one(tmp_path):
    [example] = [text for heading, text in blocks(TEXT, "") if heading == "The file of keys"]
    file = tmp_path / "keys.toml"
    file.write_text(example)
    file.chmod(0o600)
    [key] = read_keys(file)
    assert (key.name, key.models) == ("ci", ("qwen*",))


def test_the_commands_can_be_given(tmp_path):
    [example] = [text for _, text in blocks(TEXT, "sh")]
    commands = [command for _, command in re.findall(r"(^|\$\()mlxd ([^#)\n]+)", example, re.MULTILINE)]
    assert len(commands) == 5
    env = {"HOME": str(tmp_path), "MLXD_CONFIG": "", "MLXD_AUTH__KEYS_FILE": str(tmp_path / "keys.toml")}
    for command in commands:
        done = CliRunner().invoke(cli, shlex.split(command), env=env)
        assert done.exit_code == 0, done.output
