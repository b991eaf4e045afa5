"""Grammars for required tool calls: what they allow is what mlx-lm's parser reads, and nothing else."""

import importlib
import json
from functools import partial

import pytest
from answer_models import wrapper
from tiny_models import TOOL_TEMPLATE
from tokenizers import AddedToken

from mlxd.engines.errors import GuideError, InvalidRequest
from mlxd.engines.guidance import check_guide, guide_compiler
from mlxd.engines.guide_follower import GuideFollower
from mlxd.engines.guide_tools import guide_for_tools
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide, GuideKind

ODD_NAME = 'say "hé\\llo"'


def tool(name: str, **properties) -> dict:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "One.", "parameters": parameters}}


ADD = tool("add", a={"type": "integer"}, b={"type": "integer"})
GREET = tool("greet", who={"type": "string", "maxLength": 20})
TOOLS = [ADD, GREET]
ADD_CALL, GREET_CALL = ("add", {"a": 1, "b": -2}), ("greet", {"who": "Ann"})


def as_json_tools(*calls) -> str:
    written = (json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)


def as_mistral(*calls) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def as_old_mistral(*calls) -> str:
    return "[TOOL_CALLS]" + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


def as_kimi(*calls) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
        for n, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)


def special(markers, parser: str):
    """A wrapper whose markers are special tokens, not just added ones."""
    made = wrapper((), parser)
    made._tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken(m, special=True) for m in markers]})
    return made


MODELS = {
    "json, special markers": (partial(special, ("<tool_call>", "</tool_call>"), "json_tools"), as_json_tools),
    "json, added markers": (partial(wrapper, ("<tool_call>", "</tool_call>"), "json_tools"), as_json_tools),
    "json, markers as text": (partial(wrapper, (), "json_tools"), as_json_tools),
    "mistral": (partial(special, ("[TOOL_CALLS]", "[ARGS]"), "mistral"), as_mistral),
    "old mistral": (partial(special, ("[TOOL_CALLS]",), "mistral"), as_old_mistral),
    "kimi": (partial(special, KIMI, "kimi_k2"), as_kimi),
}


@pytest.fixture(params=MODELS)
def model(request):
    make, write = MODELS[request.param]
    return Tokenizer(make()), write


def is_answer(tokenizer: Tokenizer, guide, text: str) -> bool:
    """Whether the guide takes all of a text, and then its end."""
    compiler = guide_compiler(tokenizer)
    follower = GuideFollower(compiler.matcher(guide), compiler.vocab_size, tokenizer.end_tokens)
    try:
        follower.follow(tokenizer.encode(text))
    except GuideError:
        return False
    (end,) = tokenizer.end_tokens
    return bool(follower.allowed()[end])


def test_required_calls_are_one_or_more_of_any_tool(model):
    tokenizer, write = model
    guide = guide_for_tools(tokenizer, TOOLS, None)
    check_guide(tokenizer, guide)
    assert is_answer(tokenizer, guide, write(ADD_CALL))
    assert is_answer(tokenizer, guide, write(GREET_CALL))
    assert is_answer(tokenizer, guide, write(GREET_CALL, ADD_CALL, GREET_CALL))


def test_nothing_but_calls_is_an_answer(model):
    tokenizer, write = model
    guide = guide_for_tools(tokenizer, TOOLS, None)
    for text in (
        "",
        "Well, " + write(ADD_CALL),
        write(ADD_CALL) + " done",
        write(("other", {"a": 1, "b": 2})),
        write(("add", {"a": 1})),
        write(("add", {"a": 1, "b": "two"})),
        write(("add", {"a": 1, "b": 2, "c": 3})),
        write(("greet", {"who": "x" * 30})),
    ):
        assert not is_answer(tokenizer, guide, text), text


def test_a_named_function_is_called_exactly_once(model):
    tokenizer, write = model
    guide = guide_for_tools(tokenizer, TOOLS, "greet")
    assert is_answer(tokenizer, guide, write(GREET_CALL))
    assert not is_answer(tokenizer, guide, write(ADD_CALL))
    assert not is_answer(tokenizer, guide, write(GREET_CALL, GREET_CALL))


def test_without_parallel_calls_there_is_exactly_one(model):
    tokenizer, write = model
    guide = guide_for_tools(tokenizer, TOOLS, None, parallel=False)
    assert is_answer(tokenizer, guide, write(ADD_CALL))
    assert not is_answer(tokenizer, guide, write(ADD_CALL, GREET_CALL))


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            Guide(GuideKind.JSON_SCHEMA, '{"type":"object","properties":{"n":{"type":"integer"}}}'),
            '{"n":1}',
            '{"n":"x"}',
        ),
        (Guide(GuideKind.REGEX, "yes|no"), "yes", "maybe"),
    ],
    ids=["schema", "regex"],
)
def test_a_form_or_calls_are_an_answer_and_nothing_else(model, form, good, bad):
    tokenizer, write = model
    guide = guide_for_tools(tokenizer, TOOLS, None, form=form)
    check_guide(tokenizer, guide)
    assert is_answer(tokenizer, guide, good)
    assert is_answer(tokenizer, guide, write(ADD_CALL))
    for text in (bad, "", good + write(ADD_CALL), write(ADD_CALL) + good, write(("add", {"a": 1}))):
        assert not is_answer(tokenizer, guide, text), text


def test_a_grammar_beside_tools_is_refused(model):
    tokenizer, _ = model
    with pytest.raises(InvalidRequest, match="leave tools out"):
        guide_for_tools(tokenizer, TOOLS, None, form=Guide(GuideKind.GRAMMAR, "start: /x/"))


def test_what_the_guide_allows_is_what_the_parser_reads(model):
    tokenizer, write = model
    parser = tokenizer.once(dict, lambda wrapped: {"parse": wrapped.tool_parser})["parse"]
    module = importlib.import_module(parser.__module__)
    inside = write(ADD_CALL).removeprefix(module.tool_call_start)
    inside = inside.removesuffix(module.tool_call_end) if module.tool_call_end else inside
    call = parser(inside, TOOLS)
    call = call[0] if isinstance(call, list) else call
    assert (call["name"], call["arguments"]) == ADD_CALL


def test_a_name_of_any_characters_is_written_as_json():
    tokenizer = Tokenizer(wrapper(("<tool_call>", "</tool_call>"), "json_tools"))
    guide = guide_for_tools(tokenizer, [tool(ODD_NAME, a={"type": "null"})], None)
    assert is_answer(tokenizer, guide, as_json_tools((ODD_NAME, {"a": None})))


def test_a_name_that_the_syntax_cannot_hold_is_refused():
    tokenizer = Tokenizer(MODELS["mistral"][0]())
    with pytest.raises(InvalidRequest, match="function name"):
        guide_for_tools(tokenizer, [tool("a b")], None)


def test_references_stay_inside_each_functions_parameters():
    tokenizer = Tokenizer(wrapper(("<tool_call>", "</tool_call>"), "json_tools"))
    tools = [tool("one", a={"$ref": "#/$defs/x"}), tool("two", a={"$ref": "#/$defs/x"})]
    tools[0]["function"]["parameters"]["$defs"] = {"x": {"const": 1}}
    tools[1]["function"]["parameters"]["$defs"] = {"x": {"const": "two"}}
    guide = guide_for_tools(tokenizer, tools, None)
    assert is_answer(tokenizer, guide, as_json_tools(("one", {"a": 1}), ("two", {"a": "two"})))
    assert not is_answer(tokenizer, guide, as_json_tools(("one", {"a": "two"})))


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"properties": {}}])
def test_a_function_without_parameters_takes_an_object(parameters):
    tokenizer = Tokenizer(wrapper(("<tool_call>", "</tool_call>"), "json_tools"))
    guide = guide_for_tools(tokenizer, [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "f")
    assert is_answer(tokenizer, guide, as_json_tools(("f", {})))
    assert not is_answer(tokenizer, guide, as_json_tools(("f", 3)))


def test_parameters_that_are_no_schema_are_refused_with_the_reason():
    tokenizer = Tokenizer(wrapper(("<tool_call>", "</tool_call>"), "json_tools"))
    deep: dict = {}
    for _ in range(300):
        deep = {"properties": {"a": deep}}
    for parameters, reason in (
        ({"$ref": "http://x/y"}, "retriev"),
        ({"type": 3}, "type"),
        ({"type": "string"}, "object"),
        ({"type": ["null", "array"]}, "object"),
        (deep, "recursion"),
    ):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        with pytest.raises(InvalidRequest, match=reason):
            check_guide(tokenizer, guide_for_tools(tokenizer, tools, None))


@pytest.mark.parametrize("parser", ["glm47", "qwen3_coder", "pythonic", "minimax_m2", "longcat", "gemma4"])
def test_a_call_syntax_that_is_not_json_is_refused(parser):
    tokenizer = Tokenizer(wrapper((), parser))
    with pytest.raises(InvalidRequest, match="not JSON"):
        guide_for_tools(tokenizer, TOOLS, None)


def test_a_model_without_tools_is_refused():
    with pytest.raises(InvalidRequest, match="not JSON"):
        guide_for_tools(Tokenizer(wrapper((), None, TOOL_TEMPLATE)), TOOLS, None)


def test_many_functions_fit():
    tokenizer = Tokenizer(wrapper(("<tool_call>", "</tool_call>"), "json_tools"))
    tools = [
        tool(f"function_{n}", **{f"p{i}": {"type": "string", "description": "y" * 300} for i in range(6)})
        for n in range(100)
    ]
    guide = guide_for_tools(tokenizer, tools, None)
    check_guide(tokenizer, guide)
    assert is_answer(tokenizer, guide, as_json_tools(("function_99", {f"p{i}": "" for i in range(6)})))
