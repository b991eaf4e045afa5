"""OpenAI's JavaScript client against a real daemon. It is installed with npm, so that this is part of `make soak`."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from clients_daemon import ARGUMENTS, NAMES, SAID

pytestmark = pytest.mark.soak

TESTS = Path(__file__).resolve().parent
# the last ones for Node 20
PACKAGES = ("openai@6.49.0", "zod@4.6.7")
SENTENCE = "".join(SAID)
FORECAST = ["get_weather", ARGUMENTS]


def installed() -> Path:
    """A folder in which scripts find the packages."""
    folder = TESTS.parent / ".cache" / "js" / "-".join(PACKAGES)
    done = folder / "installed"
    if done.exists():
        return folder
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if result.returncode != 0:
        pytest.skip(f"npm cannot install {PACKAGES}: {result.stderr[-500:]}")
    done.touch()
    return folder


@pytest.fixture(scope="module")
def got(clients_daemon):
    """What the script got from the daemon, part by part."""
    script = shutil.copy(TESTS / "js_client.mjs", installed())
    command = ["node", str(script), clients_daemon.v1, clients_daemon.key]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ("chat", ["gpt-4o", SENTENCE, "stop"]),
        ("stream", [SENTENCE, len(SAID) + 1]),
        ("tools", ["tool_calls", *FORECAST]),
        ("streamed_tools", ["tool_calls", [FORECAST]]),
        ("run_tools", ARGUMENTS),
        ("structured", ARGUMENTS),
        ("models", [sorted(NAMES), "speaker"]),
        ("abort", True),
        ("responses", [SENTENCE, "completed", SENTENCE]),
        ("embeddings", [True, True, True]),
    ],
)
def test_a_call_of_the_client_is_answered(got, part, wanted):
    assert got[part] == wanted


def test_what_goes_wrong_is_a_class_of_error_of_the_client(got):
    assert got["errors"] == {
        "name": ["NotFoundError", 404, "model_not_found", "model"],
        "streamed": ["NotFoundError", 404, "model_not_found", "model"],
        "value": ["BadRequestError", 400, "invalid_request", "temperature"],
        "length": ["BadRequestError", 400, "context_length_exceeded", "messages"],
        "key": ["AuthenticationError", 401, "invalid_api_key", None],
        "scope": ["PermissionDeniedError", 403, "forbidden", None],
        "timeout": ["APIConnectionTimeoutError", None, None, None],
    }
