"""Fields, items and tools of the Responses API: all that the openai package knows, as docs/api-responses.md says."""

import json
import re
from typing import get_args, get_type_hints

import pytest
from doc_pages import claims, page, rows, takes, words
from openai.types.responses import response_create_params, response_includable
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_input_param import ResponseInputItemParam
from openai.types.responses.response_input_text_param import ResponseInputTextParam
from openai.types.responses.response_output_text_param import ResponseOutputTextParam
from openai.types.responses.response_text_config_param import ResponseTextConfigParam
from openai.types.responses.tool_param import FunctionToolParam, ToolParam
from openai.types.shared_params import Reasoning

from mlxd.daemon.api.refusals import ApiError
from mlxd.daemon.api.responses import items, kept, store
from mlxd.daemon.api.responses.bodies import (
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    CreateBody,
    FunctionTool,
    PromptBody,
    ReasoningConfig,
    TextConfig,
)
from mlxd.daemon.api.responses.fields import COUNT, CREATE
from mlxd.daemon.api.responses.items import CallItem, MessageItem, ReasoningItem, ReferenceItem, ResultItem
from mlxd.daemon.api.responses.parsing import parse_count, parse_create

TEXT = page("api-responses")
HELLO = {"model": "m", "input": "hello"}
TOOL = {"type": "function", "name": "f"}
SERVED = [(words(field)[0], kind) for field, kind, _ in rows(TEXT, "Served")]
IGNORED = [(words(field)[0], kind) for field, kind in rows(TEXT, "Without effect")]
LOGPROBS = ["message.output_text.logprobs"]
# a value beside the default for each field to which 1 does not mean anything else
ANOTHER = {
    "model": "other",
    "input": "bye",
    "instructions": "x",
    "previous_response_id": "resp_1",
    "include": LOGPROBS,
    "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "low"},
    "tools": [TOOL],
    "tool_choice": "required",
    "metadata": {"a": "b"},
    "store": False,
    "stream": True,
    "parallel_tool_calls": False,
}
COMPANIONS = {"top_logprobs": {"include": LOGPROBS}, "tool_choice": {"tools": [TOOL]}}
# these say that something is to be as it is anyway
WITHOUT_CHOICE = {"truncation", "stream_options"}
ITEM_STRUCTS = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": ResultItem,
    "reasoning": ReasoningItem,
    "item_reference": ReferenceItem,
}


def hints(kind):
    return get_type_hints(kind)


def type_names(union):
    """The values of `type` in a union of the package's parameters."""
    return {name for each in get_args(union) for name in literals(hints(each)["type"])}


def literals(hint):
    values = get_args(hint)
    return [name for each in values for name in ([each] if isinstance(each, str) else literals(each))]


def wire_fields(struct):
    return set(struct.__struct_encode_fields__)


def test_every_field_of_the_package_is_in_one_table():
    documented = [name for name, _ in (*SERVED, *IGNORED)] + [words(cells[0])[0] for cells in rows(TEXT, "Refused")]
    assert len(documented) == len(set(documented))
    known = hints(response_create_params.ResponseCreateParamsBase).keys() | {"stream", "client_metadata"}
    assert set(documented) == known


def test_the_tables_are_those_of_the_code():
    assert {name for name, _ in (*SERVED, *IGNORED)} == set(CreateBody.__struct_fields__)
    assert {name for name, _ in IGNORED} == CREATE.ignored
    refused = {
        words(field)[0]: [json.loads(value) for value in words(harmless)] for field, harmless in rows(TEXT, "Refused")
    }
    assert refused == {name: list(harmless) for name, harmless in CREATE.refused.items()}


@pytest.mark.parametrize(("name", "kind"), [*SERVED, *IGNORED])
def test_a_field_takes_what_the_document_says(name, kind):
    body = {**HELLO, **COMPANIONS.get(name, {})}
    good, bad = claims(kind)
    assert bad
    assert [value for value in good if not takes(parse_create, {**body, name: value})] == []
    assert [value for value in bad if takes(parse_create, {**body, name: value})] == []
    assert takes(parse_create, {**body, name: None}) or name == "input"


@pytest.mark.parametrize(("name", "kind"), [each for each in SERVED if each[0] not in WITHOUT_CHOICE])
def test_a_field_that_is_served_has_an_effect(name, kind):
    body = {**HELLO, **COMPANIONS.get(name, {})}
    assert parse_create({**body, name: ANOTHER.get(name, 1)}) != parse_create(body)


@pytest.mark.parametrize(("name", "kind"), IGNORED)
def test_a_field_without_effect_is_told_of(name, kind):
    sent = {**HELLO, name: claims(kind)[0][0]}
    wanted = parse_create(sent)[1]
    assert wanted.options == parse_create(HELLO)[1].options
    assert wanted.ignored == (name,)


def test_what_is_passed_over_inside_of_fields_is_told_of():
    reasoning = {"summary": "auto", "generate_summary": "concise"}
    prompt = {**HELLO, "reasoning": reasoning, "tools": [TOOL, {"type": "web_search"}]}
    delivery = {"reasoning_summary_delivery": "sequential_cutoff"}
    sent = {**prompt, "include": ["reasoning.encrypted_content"], "stream_options": delivery}
    inside = ("tools.web_search", "reasoning.summary", "reasoning.generate_summary")
    outside = ("include.reasoning.encrypted_content", "stream_options.reasoning_summary_delivery")
    assert parse_create(sent)[1].ignored == outside + inside
    assert parse_count(prompt).ignored == inside


def test_the_fields_of_the_token_count_are_those_of_the_package():
    known = hints(InputTokenCountParams).keys()
    assert set(PromptBody.__struct_fields__) | COUNT.refused.keys() == known
    said = TEXT.partition("`POST /v1/responses/input_tokens` takes")[2].partition("Its answer is")[0]
    assert set(words(said)) == known
    for name, value in {"conversation": "x", "personality": "friendly", "temperature": 1}.items():
        with pytest.raises(ApiError) as refused:
            parse_count({**HELLO, name: value})
        assert refused.value.param == name


def test_every_part_of_a_field_that_the_package_knows_is_served_or_refused_by_name():
    assert wire_fields(TextConfig) == hints(ResponseTextConfigParam).keys()
    assert wire_fields(ReasoningConfig) == hints(Reasoning).keys()
    assert wire_fields(FunctionTool) | {"type"} == hints(FunctionToolParam).keys()
    assert wire_fields(items.InputTextPart) | {"type"} == hints(ResponseInputTextParam).keys()
    assert wire_fields(items.OutputTextPart) | {"type"} == hints(ResponseOutputTextParam).keys()
    for name in get_args(response_includable.ResponseIncludable):
        assert takes(parse_create, {**HELLO, "include": [name]}) == (name in TEXT)


def test_every_type_of_item_that_the_package_knows_is_served_or_refused():
    served = {words(kind)[0] for kind, *_ in rows(TEXT, "Items")}
    listed = TEXT.partition("Items of these types are refused:")[2].partition("\n\n")[0]
    assert served == items.SERVED
    assert set(words(listed)) == items.REFUSED
    assert type_names(ResponseInputItemParam) == items.SERVED | items.REFUSED
    for kind in items.REFUSED:
        with pytest.raises(ApiError) as refused:
            parse_create({**HELLO, "input": ["hello", {"type": kind}]})
        assert refused.value.param == "input[1].type"


def test_every_field_of_an_item_counts_or_is_passed_over_as_documented():
    known = {}
    for each in get_args(ResponseInputItemParam):
        for kind in literals(hints(each)["type"]):
            known.setdefault(kind, set()).update(hints(each).keys() - {"type"})
    for kind, counts, passed in rows(TEXT, "Items"):
        name, refused = words(kind)[0], {"encrypted_content", "namespace"}
        assert wire_fields(ITEM_STRUCTS[name]) - refused == {*words(counts), *words(passed)}
        assert known[name] <= wire_fields(ITEM_STRUCTS[name])


def test_every_type_of_tool_but_functions_is_refused_or_passed_over_beside_them():
    said = TEXT.partition("Beside functions, tools of the types ")[2].partition(" are passed over")[0]
    passed_over = set(words(said))
    types = type_names(ToolParam)
    assert passed_over < types
    for kind in types - {"function"}:
        other = {"type": kind, "name": "x", "tools": []}
        with pytest.raises(ApiError) as refused:
            parse_create({**HELLO, "tools": [other]})
        assert refused.value.param == "tools[0].type"
        if kind in passed_over:
            _, wanted = parse_create({**HELLO, "tools": [other, TOOL]})
            assert (len(wanted.tools.tools), wanted.ignored) == (1, (f"tools.{kind}",))
            continue
        with pytest.raises(ApiError) as refused:
            parse_create({**HELLO, "tools": [TOOL, other]})
        assert refused.value.param == "tools[1].type"


def test_every_type_of_tool_choice_is_served_or_refused():
    choices = get_args(hints(response_create_params.ResponseCreateParamsBase)["tool_choice"])
    names = {name for each in choices if hasattr(each, "__annotations__") for name in literals(hints(each)["type"])}
    assert {"function", "allowed_tools"} < names
    for kind in names - {"function", "allowed_tools"}:
        with pytest.raises(ApiError) as refused:
            parse_create({**HELLO, "tools": [TOOL], "tool_choice": {"type": kind, "name": "f"}})
        assert refused.value.param == "tool_choice.type"


def test_the_bounds_are_in_the_document():
    assert f"at most {store.MAX_RESPONSES} of them and {store.MAX_BYTES} bytes" in TEXT
    assert f"(1 to {kept.MAX_LISTED}, {kept.LISTED} unless said)" in TEXT
    assert f"after {kept.CANCEL_PATIENCE:g} seconds" in TEXT
    metadata = next(does for field, _, does in rows(TEXT, "Served") if words(field) == ["metadata"])
    assert [int(n) for n in re.findall(r"\d+", metadata)] == [MAX_METADATA, MAX_METADATA_VALUE, MAX_METADATA_KEY]
