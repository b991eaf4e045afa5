"""docs/api-anthropic.md says what becomes of every field of the API: it is compared with the code and with Anthropic's
own package.
"""

import json
import typing

import pytest
import typing_extensions
from anthropic import types
from anthropic.types import beta, message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from anthropic_calls import WEATHER, answer_of, asks
from api_fakes import last, serving
from doc_pages import blocks, page, rows, words

from mlxd.daemon.api.anthropic import blocks as taken
from mlxd.daemon.api.anthropic.bodies import ThinkingAdaptive, ThinkingDisabled, ThinkingEnabled
from mlxd.daemon.api.anthropic.failure import OTHERS, TYPES, TYPES_BY_CODE, failure
from mlxd.daemon.api.anthropic.fields import COUNT, IGNORED_INSIDE, MESSAGES
from mlxd.daemon.api.anthropic.objects import Event
from mlxd.daemon.api.anthropic.parsing import parse_message
from mlxd.daemon.api.anthropic.tools import Tool, ToolChoice
from mlxd.daemon.api.errors import TABLE, describe
from mlxd.daemon.api.refusals import InvalidField
from mlxd.engines.types import RequestOutput, ToolCall, Usage
from mlxd.registry.names import UnknownModel

TEXT = page("api-anthropic")
# Anthropic took these until lately, and most clients send them.
OLDER = {"temperature", "top_p", "top_k"}
BLOCKS = {kind.__struct_config__.tag: kind for kind in typing.get_args(taken.Block)}


def documented(column):
    """Each field of a call with what the document says of it."""
    return {words(cells[0])[0]: cells[column] for cells in rows(TEXT, "Fields")}


def state(table, name):
    if name in table.refused:
        return "refused"
    return "ignored" if name in table.ignored else "served"


@pytest.mark.parametrize(("column", "table"), [(1, MESSAGES), (2, COUNT)])
def test_every_field_is_in_the_document_as_it_is_in_the_code(column, table):
    assert documented(column) == {name: state(table, name) for name in (*table.known, *table.refused)}


@pytest.mark.parametrize(
    ("params", "table"),
    [
        (message_create_params.MessageCreateParamsNonStreaming, MESSAGES),
        (message_create_params.MessageCreateParamsStreaming, MESSAGES),
        (beta_create_params.MessageCreateParamsNonStreaming, MESSAGES),
        (message_count_tokens_params.MessageCountTokensParams, COUNT),
        (beta_count_params.MessageCountTokensParams, COUNT),
    ],
)
def test_every_field_of_anthropics_package_is_known(params, table):
    fields = set(typing_extensions.get_type_hints(params))
    assert {"messages", "model"} <= fields
    assert fields - {*table.known, *table.refused} == set()


def test_no_field_is_served_that_anthropic_does_not_have():
    served = {name for name in MESSAGES.known if name not in MESSAGES.ignored}
    package = set(typing_extensions.get_type_hints(beta_create_params.MessageCreateParamsNonStreaming))
    assert served - package == OLDER | {"output_format"}


def test_harmless_values_are_those_of_the_document():
    said = {words(name)[0]: words(meaning) for name, *_, meaning in rows(TEXT, "Fields")}
    for name, harmless in MESSAGES.refused.items():
        assert [json.loads(word) for word in said[name]] == list(harmless), name


def tags(union):
    """The types of what a union of the package's has."""
    for kind in typing.get_args(union):
        if typing_extensions.is_typeddict(kind):
            yield typing.get_args(typing_extensions.get_type_hints(kind)["type"])[0], kind


def every_block():
    for union in (types.ContentBlockParam, beta.BetaContentBlockParam):
        yield from tags(union)
    for module in (types.tool_result_block_param, beta.beta_tool_result_block_param):
        yield from tags(module.Content)


def test_every_block_of_anthropics_package_is_taken_or_refused_with_a_reason():
    found = {tag for tag, _ in every_block()}
    assert {"text", "server_tool_use", "tool_reference"} <= found
    assert found == BLOCKS.keys() | taken.REFUSED_BLOCKS.keys()


def test_every_block_is_in_the_document():
    said = {words(cells[0])[0]: cells[1] for cells in rows(TEXT, "Messages")}
    assert {tag for tag, is_what in said.items() if is_what == "refused"} == {*taken.REFUSED_BLOCKS}
    assert {tag for tag, is_what in said.items() if is_what != "refused"} == BLOCKS.keys()


@pytest.mark.parametrize("tag", sorted(BLOCKS))
def test_every_field_of_a_block_is_known(tag):
    fields = {name for each, kind in every_block() if each == tag for name in typing_extensions.get_type_hints(kind)}
    assert fields == {"type", *BLOCKS[tag].__struct_fields__}


def every_tool():
    for union in (types.ToolUnionParam, beta.BetaToolUnionParam):
        for kind in typing.get_args(union):
            hint = typing_extensions.get_type_hints(kind)["type"]
            yield kind, [word for word in typing.get_args(hint) if isinstance(word, str)]


def test_tools_that_only_anthropic_has_are_refused_by_their_type():
    foreign = {name for _, names in every_tool() for name in names}
    assert "web_search_20250305" in foreign
    assert len(foreign) > 20
    for name in foreign:
        with pytest.raises(InvalidField) as caught:
            parse_message(asks(tools=[WEATHER, {"type": name, "name": "x", "max_uses": 5}]))
        assert caught.value.param == "tools[1].type"


def test_every_field_of_a_tool_is_in_the_document():
    package = set(typing_extensions.get_type_hints(types.ToolParam)) | set(
        typing_extensions.get_type_hints(beta.BetaToolParam)
    )
    said = {words(cells[0])[0]: cells[1] for cells in rows(TEXT, "Tools")}
    assert package == set(Tool.__struct_fields__) == said.keys()
    assert {name for name, is_what in said.items() if is_what == "ignored"} == set(IGNORED_INSIDE["tools"])


def test_every_choice_and_every_way_to_think_is_known():
    choices = {tag for tag, _ in tags(types.ToolChoiceParam)}
    assert choices == {kind.__struct_config__.tag for kind in typing.get_args(ToolChoice)}
    thinking = {"enabled": ThinkingEnabled, "adaptive": ThinkingAdaptive, "disabled": ThinkingDisabled}
    ways = dict(tags(beta.BetaThinkingConfigParam))
    assert ways.keys() == {*thinking, "between_tools"}
    for tag, kind in thinking.items():
        assert set(typing_extensions.get_type_hints(ways[tag])) == {"type", *kind.__struct_fields__}
    assert {words(cells[0])[0] for cells in rows(TEXT, "Thinking")} == thinking.keys()


def test_budgets_are_those_of_the_document():
    for below, effort in ((4096, "low"), (16384, "medium")):
        budget = {"type": "enabled", "budget_tokens": below - 1}
        assert parse_message(asks(thinking=budget)).chat.effort == effort
        assert str(below) in TEXT


def test_every_event_is_in_the_document():
    said = {words(cells[0])[0] for cells in rows(TEXT, "Streams")}
    assert said == {kind.__struct_config__.tag for kind in typing.get_args(Event)}


def test_the_types_of_errors_are_those_of_the_document():
    said = {cells[0]: words(cells[1])[0] for cells in rows(TEXT, "Errors")}
    assert said == {**{str(status): kind for status, kind in TYPES.items()}, "other": OTHERS}
    assert {row.status for row in TABLE.values() if row.code in TYPES_BY_CODE} == {503}


def shape(value):
    if isinstance(value, dict):
        return {key: shape(element) for key, element in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else None


async def test_the_example_of_an_answer_looks_like_one():
    output = RequestOutput("a", Usage(6, 1), reasoning="b", tool_calls=(ToolCall("f", '{"city": "x"}'),))
    async with serving() as served:
        message = await answer_of(served, output, last(""))
    [example] = [json.loads(text) for at, text in blocks(TEXT, "json") if at == "Answers"]
    assert shape(example) == shape(message.to_dict())


def test_the_example_of_an_error_looks_like_one():
    [example] = [json.loads(text) for at, text in blocks(TEXT, "json") if at == "Errors"]
    refused = failure(describe(UnknownModel("qwem", ("qwen",)), "r"), "r")
    assert example["error"]["message"] == refused.error.message
    assert example["error"]["type"] == refused.error.type
