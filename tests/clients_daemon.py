"""One real daemon for the clients that people use: models that say certain things, and API keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daemon_process import daemon
from doc_pages import blocks, page
from tiny_encoders import build_encoder
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model

from mlxd.daemon.keys import ApiKey, Scope, hash_of, new_secret
from mlxd.daemon.keys_file import add_key

QUESTION = "What is the capital of France?"
SAID = ["The", " capital", " is", " Paris", "."]
THOUGHT = ["They", " mean", " Paris", ".", "</think>", "\n\n"]
# as an answer that must keep to the schema may be written: calls have a space after : and ,
FORECAST = ['{"city":', '"Paris",', '"days":', "2", "}"]
ARGUMENT_PIECES = ['{"city":', ' "Paris",', ' "days":', " 2", "}"]
CALL = ["<tool_call>", '\n{"name": "get_weather"', ', "arguments": ', *ARGUMENT_PIECES, "}\n", "</tool_call>"]
ARGUMENTS = {"city": "Paris", "days": 2}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}}
NAMES = {
    *("speaker", "gpt-4o", "qwen", "thinker", "caller", "former", "busy"),
    *("embedder", "text-embedding-3-small", "minilm"),
}
MESSAGES = [{"role": "user", "content": QUESTION}]
CALLED = [
    {"role": "user", "content": "Weather in Paris?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
]
CONFIG = """
[[model]]
name = "speaker"
aliases = ["gpt-4o", "qwen"]

[[model]]
name = "busy"
engine = {{ max_running = 1, max_waiting = 1 }}

[[model]]
name = "embedder"
aliases = ["text-embedding-3-small", "minilm"]

[auth]
keys_file = "{keys}"
"""


@dataclass(frozen=True, slots=True)
class Serving:
    """Where the daemon is, and secrets of a key that may use models and of one that may do everything."""

    url: str
    key: str
    admin: str

    @property
    def v1(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"{self.url}/v1"


@contextmanager
def serving(folder: Path) -> Iterator[Serving]:
    """The daemon. `speaker` answers a sentence, `thinker` thinks before, `caller` thinks and calls a tool, `former`
    answers in JSON, `busy` never ends and takes two requests at a time, `embedder` makes embeddings.
    """
    models, added = folder / "models", ANSWER_MARKERS
    build_reciting_model(models / "speaker", SAID)
    build_reciting_model(models / "thinker", [*THOUGHT, *SAID], template=TOOL_TEMPLATE, added=added)
    build_reciting_model(models / "caller", [*THOUGHT, *CALL], template=TOOL_TEMPLATE, added=added)
    build_reciting_model(models / "former", FORECAST)
    build_reciting_model(models / "busy", ["on", " and "], loop=True)
    build_encoder(models / "embedder")
    file = folder / "keys.toml"
    secrets = {scope: new_secret() for scope in (Scope.INFER, Scope.ADMIN)}
    for scope, secret in secrets.items():
        add_key(file, ApiKey(str(scope), (scope,), hash_of(secret), datetime.now(UTC)))
    with daemon(folder / "daemon", models, CONFIG.format(keys=file)) as running:
        yield Serving(running.url, secrets[Scope.INFER], secrets[Scope.ADMIN])


def snippets(served: Serving, heading: str, language: str, name: str = "clients", key: str = "") -> list[str]:
    """What a page has under a heading, about this daemon and with this key, the one for models unless said."""
    texts = [text for at, text in blocks(page(name), language) if at == heading]
    return [text.replace("http://127.0.0.1:8484", served.url).replace("unused", key or served.key) for text in texts]
