"""Forms of answers: every name that clients have for one, and what is refused before anything is generated."""

import json
import re

import pytest
from api_calls import CHAT, TEXT, answered, hello, refusal
from api_fakes import last, serving

from mlxd.daemon.api import wanted_guide
from mlxd.daemon.api.openai.parsing import parse_chat, parse_completion
from mlxd.daemon.api.refusals import ApiError
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.types import Guide, GuideKind

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT_OF_SCHEMA = json.dumps(SCHEMA, separators=(",", ":"))


def named(**fields):
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **fields}}


def guide(**fields):
    wanted = parse_chat({"messages": [USER], **fields}).options.guide
    assert wanted == parse_completion({"prompt": "x", **fields}).text.options.guide
    return wanted


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}', "response_format"),
        ({"response_format": named()}, "json_schema", TEXT_OF_SCHEMA, "response_format"),
        ({"response_format": named(strict=False, description="d")}, "json_schema", TEXT_OF_SCHEMA, "response_format"),
        ({"guided_json": SCHEMA}, "json_schema", TEXT_OF_SCHEMA, "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", TEXT_OF_SCHEMA, "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_grammar": "start: /x/"}, "grammar", "start: /x/", "guided_grammar"),
        ({"guided_choice": ["yes", "no"]}, "regex", "yes|no", "guided_choice"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT_OF_SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a"}}, "regex", "a", "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "g"}}, "grammar", "g", "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": ["a"]}}, "regex", "a", "structured_outputs.choice"),
        (
            {"structured_outputs": {"json_object": True}},
            "json_schema",
            '{"type":"object"}',
            "structured_outputs.json_object",
        ),
    ],
)
def test_a_form_is_the_same_guide_under_every_name(fields, kind, text, param):
    wanted = guide(**fields)
    assert (wanted.guide, wanted.param) == (Guide(GuideKind(kind), text), param)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False, "json": None}},
    ],
)
def test_no_form_is_no_guide(fields):
    assert guide(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": named(schema=[])}, "response_format.json_schema.schema"),
        ({"response_format": named(name="")}, "response_format.json_schema.name"),
        ({"response_format": named(name="x" * 65)}, "response_format.json_schema.name"),
        ({"response_format": named(strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": named(extra=1)}, "response_format.json_schema.extra"),
        ({"response_format": named(schema={"enum": ["x" * 300_000]})}, "response_format"),
        ({"guided_json": 3}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": '{"a":' * 500 + "1" + "}" * 500}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "x" * 300_000}, "guided_regex"),
        ({"guided_grammar": 1}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice[0]"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice"),
        ({"guided_choice": ["!" * 100_000]}, "guided_choice"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json_object": True, "regex": "a"}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a"}, "guided_json": {}}, "structured_outputs.regex"),
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 1}, "min_tokens"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_bad_form_names_its_field(fields, param):
    for parse, default in ((parse_chat, {"messages": [USER]}), (parse_completion, {"prompt": "x"})):
        with pytest.raises(ApiError) as refused:
            parse({**default, **fields})
        assert refused.value.param == param
        assert len(str(refused.value)) < 600


def test_choices_mean_themselves_whatever_is_in_them():
    choices = ["a.b", "(x|y)*", "new\nline", "ein Ü 😀", "back\\slash", "$^", "[a-z]", "under_score", "/*#-&~ <>%"]
    text = guide(guided_choice=choices).guide.text
    pattern = re.compile(re.sub(r"\\x\{([0-9a-f]+)\}", lambda match: re.escape(chr(int(match[1], 16))), text))
    assert all(pattern.fullmatch(choice) for choice in choices)
    assert not any(pattern.fullmatch(other) for other in ("axb", "x", "xx", "newline", "m"))


@pytest.fixture
def compiled(monkeypatch):
    """The guides that were compiled."""
    seen = []

    def check(tokenizer, guide):
        seen.append(guide)
        if "bad" in guide.text:
            raise InvalidRequest("it has no sense")
        return guide

    monkeypatch.setattr(wanted_guide, "check_guide", check)
    return seen


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_form_is_compiled_once_and_reaches_the_engine(compiled, path):
    requests = []

    def script(arrived):
        requests.extend(arrived)
        for request in arrived:
            served.engine.put(request, last("x"))

    body = hello() if path == CHAT else {"model": "m", "prompt": ["a", "b"]}
    async with serving() as served:
        status, _ = await answered(served, {**body, "n": 2, "guided_regex": "a+"}, path, script=script)
    assert status == 200
    assert compiled == [Guide(GuideKind.REGEX, "a+")]
    assert {request.sampling.guide for request in requests} == set(compiled)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_form_that_cannot_be_compiled_is_refused_with_the_reason(compiled, path, stream):
    body = hello() if path == CHAT else {"model": "m", "prompt": "a"}
    async with serving() as served:
        status, error = await refusal(served, {**body, "guided_regex": "bad", "stream": stream}, path)
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "guided_regex")
        assert error["message"] == "guided_regex: it has no sense"
        assert served.engine.arrivals.empty()
    assert compiled
