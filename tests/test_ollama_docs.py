"""docs/api-ollama.md says what the Ollama calls take and answer: it is compared with the code, and with the package."""

import json

import msgspec
import ollama
import pytest
from doc_pages import blocks, claims, page, rows, takes, words
from ollama._types import (
    ChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    Message,
    Options,
    ShowRequest,
)
from ollama_calls import chat, generate

from mlxd.daemon.api.body import convert
from mlxd.daemon.api.folders import PATIENCE
from mlxd.daemon.api.ollama import fields, messages, options
from mlxd.daemon.api.ollama.bodies import (
    MAX_INPUTS,
    ChatBody,
    EmbedBody,
    EmbeddingsBody,
    GenerateBody,
    GenerationBody,
    ShowBody,
)
from mlxd.daemon.api.ollama.embed import parse_embed
from mlxd.daemon.api.ollama.embed import routes as embed_routes
from mlxd.daemon.api.ollama.generation import routes as generation_routes
from mlxd.daemon.api.ollama.models import routes as model_routes
from mlxd.daemon.api.ollama.moments import NEVER
from mlxd.daemon.api.ollama.objects import ChatAnswer, EmbedAnswer, ErrorBody, ModelTags, ShownModel
from mlxd.daemon.api.ollama.parsing import parse_chat, parse_generate
from mlxd.daemon.api.tool_use import MAX_TOOLS
from mlxd.daemon.api.unloading import PATIENCE as UNLOAD_PATIENCE

TEXT = page("api-ollama")
SCHEMA = {"type": "object"}


def read_option(body):
    """Check one option as a chat does."""
    return parse_chat(chat(options=body))


def read_show(body):
    fields.SHOW.check(body)
    return convert(body, ShowBody)


READERS = {
    "Chat": (parse_chat, ChatBody, chat()),
    "Generate": (parse_generate, GenerateBody, generate()),
    "Options": (read_option, options.Options, {}),
    "Options without effect": (read_option, options.Options, {}),
    "Embed": (parse_embed, EmbedBody, {"input": "a"}),
    "Models": (read_show, ShowBody, {}),
}
TABLES = {"chat": fields.CHAT, "generate": fields.GENERATE, "options": fields.OPTIONS, "show": fields.SHOW}
# what a field needs beside it
COMPANIONS = {"top_logprobs": {"logprobs": True}}
# a value beside the default for each field to which 1, or true, does not mean anything else
ANOTHER = {
    "model": "other",
    "messages": [{"role": "user", "content": "bye"}],
    "tools": [{"function": {"name": "f"}}],
    "stream": False,
    "format": SCHEMA,
    "options": {"temperature": 0.5},
    "prompt": "bye",
    "system": "Be brief.",
    "images": ["aGk="],
    "stop": "x",
    "input": "b",
    "name": "other",
    "truncate": False,
}


def documented():
    """Each heading with a field of its table, and what that takes."""
    for heading in READERS:
        yield from ((heading, words(name)[0], kind) for name, kind, *_ in rows(TEXT, heading))


@pytest.mark.parametrize("heading", ["Chat", "Generate", "Embed", "Models"])
def test_every_field_is_in_its_table(heading):
    named = [name for at, name, _ in documented() if at == heading]
    assert sorted(named) == sorted(READERS[heading][1].__struct_fields__)


def test_every_option_is_in_one_table():
    served = [name for at, name, _ in documented() if at == "Options"]
    without = [name for at, name, _ in documented() if at == "Options without effect"]
    assert set(served) == options.SERVED
    assert sorted([*served, *without]) == sorted(options.Options.__struct_fields__)
    assert {f"options.{name}" for name in without} == fields.OPTIONS.ignored


@pytest.mark.parametrize(("heading", "name", "kind"), [*documented()])
def test_a_field_takes_what_the_document_says(heading, name, kind):
    read, _, body = READERS[heading]
    body = {**body, **COMPANIONS.get(name, {})}
    good, bad = claims(kind)
    assert bad
    assert [value for value in good if not takes(read, {**body, name: value})] == []
    assert [value for value in bad if takes(read, {**body, name: value})] == []


@pytest.mark.parametrize(("heading", "name", "kind"), [*documented()])
def test_a_field_has_an_effect_where_the_document_says_so(heading, name, kind):
    read, _, body = READERS[heading]
    body = {**body, **COMPANIONS.get(name, {})}
    value = ANOTHER.get(name, True if kind.startswith("boolean") else 1)
    changes = read({**body, name: value}) != read(body)
    without = heading == "Options without effect" or (heading, name) == ("Embed", "options")
    assert changes != without or name == "verbose"


def test_what_is_refused_is_what_the_document_says():
    said = {call: {} for call in TABLES}
    for name, calls, harmless in rows(TEXT, "Refused"):
        for call in calls.split(", "):
            said[call][words(name)[0]] = [json.loads(value) for value in words(harmless)]
    for call, table in TABLES.items():
        # as text, because True equals 1
        assert repr(sorted(said[call].items())) == repr(sorted((n, list(v)) for n, v in table.refused.items()))
    assert fields.EMBED.refused == fields.EMBEDDINGS.refused == {}
    assert fields.VECTOR_OPTIONS.refused == fields.OPTIONS.refused


@pytest.mark.parametrize(
    ("request_type", "table"),
    [
        (ChatRequest, fields.CHAT),
        (GenerateRequest, fields.GENERATE),
        (EmbedRequest, fields.EMBED),
        (EmbeddingsRequest, fields.EMBEDDINGS),
        (ShowRequest, fields.SHOW),
    ],
)
def test_every_field_of_the_package_is_known(request_type, table):
    assert set(request_type.model_fields) <= {*table.known, *table.refused}


def test_every_option_of_the_package_is_known():
    known = {name.removeprefix("options.") for name in (*fields.OPTIONS.known, *fields.OPTIONS.refused)}
    assert set(Options.model_fields) <= known
    assert set(Message.model_fields) <= set(messages.Message.__struct_fields__)
    assert set(ollama.Tool.Function.model_fields) <= {"name", "description", "parameters"}


def test_the_older_embedding_call_has_the_fields_that_are_said():
    left_out = {"truncate", "dimensions", "input"}
    assert {*EmbeddingsBody.__struct_fields__} == {*EmbedBody.__struct_fields__} - left_out | {"prompt"}


def test_the_calls_are_those_of_the_document():
    said = [tuple(words(call)[0].split()) for call, _ in rows(TEXT, "Ollama's API")]
    routes = [*generation_routes(), *embed_routes(), *model_routes()]
    assert sorted(said) == sorted((route.method, route.path) for route in routes)


def examples(heading):
    return [json.loads(text) for at, text in blocks(TEXT, "json") if at == heading]


def test_the_examples_are_what_the_calls_answer():
    piece, end = examples("Answers")
    [error], [vectors], [tags, shown] = examples("Errors"), examples("Embed"), examples("Models")
    for example, kind in (
        (piece, ChatAnswer),
        (end, ChatAnswer),
        (error, ErrorBody),
        (vectors, EmbedAnswer[list[float]]),
        (tags, ModelTags),
        (shown, ShownModel),
    ):
        assert msgspec.to_builtins(convert(example, kind)) == example
    assert set(end) | {"logprobs"} == {*ChatAnswer.__struct_fields__}
    ollama.ChatResponse.model_validate(end)
    ollama.ListResponse.model_validate(tags)
    ollama.ShowResponse.model_validate(shown)
    ollama.EmbedResponse.model_validate(vectors)


def test_the_limits_are_those_of_the_code():
    assert f"at most {MAX_TOOLS}" in TEXT
    assert f"at most {MAX_INPUTS}" in TEXT
    assert f"At most {options.MAX_STOPS}, of 1 to {options.MAX_STOP_LENGTH} characters" in TEXT
    assert f"within {PATIENCE:g} seconds" in TEXT
    assert f"no longer than {UNLOAD_PATIENCE:g} seconds" in TEXT
    assert f"the year {NEVER[:4]}" in TEXT


def test_both_generation_calls_share_what_the_document_shares():
    shared = {name for at, name, _ in documented() if at == "Generate"} & {
        name for at, name, _ in documented() if at == "Chat"
    }
    assert shared == set(GenerationBody.__struct_fields__)
