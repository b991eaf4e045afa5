"""docs/api-routers.md against the code."""

import json

import msgspec
import pytest
from doc_pages import blocks, claims, page, rows, takes, words

from mlxd.daemon.api import unloading
from mlxd.daemon.api.body import convert
from mlxd.daemon.api.openai.models import status_of
from mlxd.daemon.api.openai.objects import ModelObject
from mlxd.daemon.api.routers import lm_studio
from mlxd.daemon.api.tokenize import FIELDS, TokenizeBody, Tokens
from mlxd.registry.states import State

TEXT = page("api-routers")
TABLES = {"LM Studio": (lm_studio.LoadBody, {"model": "m"}), "Tokens": (TokenizeBody, {})}
FIELDS_SAID = [(heading, words(name)[0], kind) for heading in TABLES for name, kind, _ in rows(TEXT, heading)]


def examples(heading):
    return [json.loads(text) for at, text in blocks(TEXT, "json") if at == heading]


def test_every_state_is_in_the_table_of_statuses():
    said = {state: words(value)[0] for value, states in rows(TEXT, "llama.cpp") for state in words(states)}
    assert said == {str(state): status_of(state).value for state in State}


def test_the_examples_are_answers_of_these_calls():
    [model] = examples("llama.cpp")
    assert model.keys() <= set(ModelObject.__struct_fields__)
    assert model["status"] == json.loads(msgspec.json.encode(status_of(State.READY)))
    [listed] = examples("LM Studio")
    assert msgspec.to_builtins(convert(listed, lm_studio.Models)) == listed
    body, answer = examples("Tokens")
    convert(body, TokenizeBody)
    assert msgspec.to_builtins(convert(answer, Tokens)) == answer
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])


@pytest.mark.parametrize("heading", TABLES)
def test_every_field_is_in_its_table(heading):
    assert [name for at, name, _ in FIELDS_SAID if at == heading] == list(TABLES[heading][0].__struct_fields__)


@pytest.mark.parametrize(("heading", "name", "kind"), [row for row in FIELDS_SAID if "array of" not in row[2]])
def test_a_field_takes_what_the_document_says(heading, name, kind):
    body_type, body = TABLES[heading]
    good, bad = claims(kind)
    assert [value for value in good if not takes(lambda each: convert({**body, name: each}, body_type), value)] == []
    assert [value for value in bad if takes(lambda each: convert({**body, name: each}, body_type), value)] == []


def test_fields_without_effect_and_refused_ones_are_named():
    without = {words(name)[0] for name, _, does in rows(TEXT, "LM Studio") if does.startswith(("Nothing", "The same."))}
    assert without == lm_studio.LOAD.ignored
    refused = TEXT.rpartition("`return_token_strs`")[2].partition(" are refused")[0]
    assert set(words(refused.partition("\n\n")[2])) == FIELDS.refused.keys()


def test_the_patience_of_an_unload_is_that_of_the_code():
    assert f"after {unloading.PATIENCE:g} seconds" in TEXT
