"""docs/api-embeddings.md against the code."""

import json
import re

import pytest
from doc_pages import blocks, claims, page, rows, takes, words

from mlxd.daemon.api.embeddings.bodies import EMBEDDINGS, MAX_INPUTS, RERANK, EmbeddingsBody, RerankBody
from mlxd.daemon.api.embeddings.create import parse_embeddings
from mlxd.daemon.api.embeddings.rerank import parse_rerank
from mlxd.engines.encoder_bert import BERT_TYPES, ROBERTA_TYPES
from mlxd.engines.encoder_causal import CAUSAL_TYPES
from mlxd.engines.encoder_tokenizer import LONG_TEXT

TEXT = page("api-embeddings")
CALLS = {
    "Embeddings": (parse_embeddings, EmbeddingsBody, EMBEDDINGS, {"model": "m", "input": "a"}),
    "Reranking": (parse_rerank, RerankBody, RERANK, {"model": "m", "query": "a", "documents": ["b"]}),
}
FIELDS = [(heading, words(name)[0], kind) for heading in CALLS for name, kind, _ in rows(TEXT, heading)]


@pytest.mark.parametrize("heading", CALLS)
def test_every_field_is_in_its_table(heading):
    assert [name for at, name, _ in FIELDS if at == heading] == list(CALLS[heading][1].__struct_fields__)


@pytest.mark.parametrize(("heading", "name", "kind"), FIELDS)
def test_a_field_takes_what_the_document_says(heading, name, kind):
    parse, _, _, body = CALLS[heading]
    good, bad = claims(kind)
    assert bad
    assert [value for value in good if not takes(parse, {**body, name: value})] == []
    assert [value for value in bad if takes(parse, {**body, name: value})] == []


@pytest.mark.parametrize("heading", CALLS)
def test_fields_without_effect_and_refused_ones_are_named(heading):
    parse, _, table, body = CALLS[heading]
    without = {words(name)[0] for name, _, does in rows(TEXT, heading) if does.startswith("Nothing")}
    assert without == table.ignored
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`(?: \(but for `([^`]*)`\))?", section.rstrip().rpartition("\n\n")[2])
    assert {name: [json.loads(harmless)] if harmless else [] for name, harmless in named} == {
        name: list(harmless) for name, harmless in table.refused.items()
    }
    for name, harmless in table.refused.items():
        assert not takes(parse, {**body, name: "anything else"})
        assert all(takes(parse, {**body, name: value}) for value in harmless)


def test_the_most_inputs_are_those_of_the_code():
    assert {int(number) for number in re.findall(r"[Aa]t most (\d+)", TEXT)} == {MAX_INPUTS}
    assert takes(parse_embeddings, {"input": ["a"] * MAX_INPUTS})
    assert not takes(parse_embeddings, {"input": ["a"] * (MAX_INPUTS + 1)})


def test_a_long_text_is_one_of_so_many_characters():
    assert re.findall(r"more than (\d+)\s+characters", TEXT) == [str(LONG_TEXT)]


def test_the_families_are_those_that_are_loaded():
    encoders, decoders = (tuple(words(families)) for families, *_ in rows(TEXT, "Models"))
    assert encoders == (*BERT_TYPES, *ROBERTA_TYPES)
    assert decoders == CAUSAL_TYPES


def test_the_bodies_of_the_examples_are_taken():
    bodies = [json.loads(text) for _, text in blocks(TEXT, "json")][::2]
    assert takes(parse_embeddings, bodies[0])
    assert takes(parse_rerank, bodies[1])
