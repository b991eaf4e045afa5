"""What the Anthropic calls take, what that means to a template and an engine, and what they refuse."""

from copy import deepcopy
from functools import reduce
from operator import getitem
from random import Random

import aiohttp
import pytest
from answer_models import wrapper
from anthropic_bodies import (
    BAD_BEGINNINGS,
    BAD_FIELDS,
    BAD_MESSAGES,
    BEGUN,
    CALL,
    CALLED,
    RESULT,
    TEXT,
    assistant,
    user,
)
from anthropic_calls import CLOCK, COUNT, MESSAGES, SCHEMA, USER, WEATHER, answer_of, asks
from api_fakes import last, serving
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

from mlxd.daemon.api.anthropic.parsing import parse_count, parse_message
from mlxd.daemon.api.refusals import ApiError, InvalidField
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.text_stream import text_stream
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import ChatFormat, Request, SamplingParams

HI = {"role": "user", "content": "hello"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "of another"}
REDACTED = {"type": "redacted_thinking", "data": "x"}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
WEATHER_TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA},
}


def parsed(**fields):
    return parse_message(asks(**fields)).chat


def read(*messages, **fields):
    """The messages that a template gets."""
    return list(parsed(messages=list(messages), **fields).messages)


def call(identity, name="f", **arguments):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(identity, text, name="f"):
    return {"role": "tool", "content": text, "tool_call_id": identity, "name": name}


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be brief.", "Be brief."),
        ([{"type": "text", "text": "Be", **CACHED}, {"type": "text", "text": "brief."}], "Be\nbrief."),
        ("x-anthropic-billing-header: cch=1;\nBe brief.", "Be brief."),
        ([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, TEXT], "x"),
        ("", None),
        ([], None),
        (None, None),
    ],
)
def test_a_system_prompt_is_the_first_message(system, text):
    expected = [] if text is None else [{"role": "system", "content": text}]
    assert read(USER, system=system) == [*expected, HI]


def test_messages_of_the_same_role_are_one_turn():
    beginning, end = {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}
    assert read(USER, user(TEXT), beginning, end, USER) == [
        {"role": "user", "content": "hello\nx"},
        {"role": "assistant", "content": "ab"},
        HI,
    ]


def test_a_system_message_may_stand_between_others():
    assert read(USER, {"role": "system", "content": [TEXT]}, USER) == [HI, {"role": "system", "content": "x"}, HI]


def test_a_document_is_its_title_its_context_and_its_text():
    plain = {"type": "text", "media_type": "text/plain", "data": "One."}
    block = {"type": "document", "source": plain, "title": "T", "context": "C", "citations": {"enabled": False}}
    blocks = {"type": "document", "source": {"type": "content", "content": [TEXT, TEXT]}, **CACHED}
    assert read(user(block, TEXT, blocks)) == [{"role": "user", "content": "T\nC\nOne.\nx\nx\nx"}]


def test_calls_and_results_are_those_of_the_template_in_the_order_of_the_calls():
    two = {**CALL, "id": "t2", "name": "g", "input": {"a": 1}, "caller": {"type": "direct"}, "toolset_name": None}
    results = user({"type": "tool_result", "tool_use_id": "t2", "content": [TEXT]}, RESULT, {**TEXT, **CACHED})
    assert read(USER, assistant(THOUGHT, TEXT, CALL, two), results) == [
        HI,
        {
            "role": "assistant",
            "content": "x",
            "reasoning_content": "Hm.",
            "tool_calls": [call("t1"), call("t2", "g", a=1)],
        },
        result("t1", "1"),
        result("t2", "x", "g"),
        {"role": "user", "content": "x"},
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "1"),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"is_error": True}, "Error: 1"),
        ({"is_error": True, "content": None}, "Error"),
    ],
)
def test_a_result_says_if_it_is_an_error(fields, text):
    assert read(USER, CALLED, user({**RESULT, **fields}))[-1] == result("t1", text)


def test_results_may_come_in_several_messages_of_one_turn():
    two = {**CALL, "id": "t2"}
    history = read(USER, assistant(CALL, two), user(RESULT), user({**RESULT, "tool_use_id": "t2"}, TEXT))
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "tool", "user"]


def test_thinking_that_cannot_be_read_is_left_out():
    assert read(USER, assistant(REDACTED, TEXT), USER)[1] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("signature", ["mlxd+???", "mlxd+/w==", "mlxd+", "mlxd:SG0u", ""])
def test_a_signature_that_carries_nothing_is_taken(signature):
    block = {"type": "thinking", "thinking": "", "signature": signature}
    assert read(USER, assistant(block, TEXT), USER)[1] == {"role": "assistant", "content": "x"}


def test_an_answer_goes_on_where_the_last_message_stops():
    chat = parsed(messages=BEGUN)
    assert chat.continues
    assert chat.messages[-1] == {"role": "assistant", "content": "It is"}
    assert not parsed(messages=[USER]).continues


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_beginning_is_none(content):
    chat = parsed(messages=[USER, {"role": "assistant", "content": content}])
    assert (chat.continues, list(chat.messages)) == (False, [HI])


@pytest.mark.parametrize("fields", BAD_BEGINNINGS, ids=str)
def test_what_would_come_before_the_beginning_of_an_answer_does_not_go_with_it(fields):
    assert parsed(**fields)
    with pytest.raises(InvalidField) as caught:
        parsed(messages=BEGUN, **fields)
    assert caught.value.param == "messages[1].content"


async def test_a_beginning_reaches_the_template_and_keeps_the_first_space():
    async with serving() as served:
        await answer_of(served, last("a"), messages=BEGUN)
        variables = served.engine.tokenizer.chats[-1][1]
    assert variables == {"add_generation_prompt": False, "continue_final_message": True}


GOES_ON = {"add_generation_prompt": False, "continue_final_message": True}


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}", "<user>hi<end><assistant>It is"),
        (
            "{% for m in messages %}<{{ m.role }}> {{ m.content | trim }} <end>{% endfor %}",
            "<user> hi <end><assistant> It is",
        ),
        ("{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}{% endfor %}", None),
        ("{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", None),
    ],
)
def test_a_template_goes_on_with_an_answer_that_is_begun_or_refuses_to(template, rendered):
    tokenizer = Tokenizer(wrapper(template=template))
    if rendered is not None:
        assert tokenizer.render_chat(BEGUN, GOES_ON) == rendered
        return
    with pytest.raises(InvalidRequest) as caught:
        tokenizer.render_chat(BEGUN, GOES_ON)
    assert len(str(caught.value)) < 500
    assert "<user>" not in str(caught.value)


def test_an_answer_that_is_begun_has_its_header_behind_it():
    model = wrapper(parser="muse_spark", response_format=RESPONSE_FORMAT)
    request = Request("r", (1,), SamplingParams(), continues_text=True, chat=ChatFormat())
    stream = text_stream(Tokenizer(model), request)
    tokens = model.encode("Paris.", add_special_tokens=False)
    assert "".join(stream.push(token).text for token in tokens) + stream.finish().text == "Paris."


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, (None, False, None)),
        ({"type": "auto"}, (None, False, None)),
        ({"type": "auto", "disable_parallel_tool_use": True}, (1, False, None)),
        ({"type": "any"}, (None, True, None)),
        ({"type": "any", "disable_parallel_tool_use": True}, (1, True, None)),
        ({"type": "tool", "name": "clock"}, (1, True, "clock")),
    ],
)
def test_a_choice_of_tools_says_how_many_calls_there_may_or_must_be(choice, expected):
    tools = parsed(tools=[WEATHER, {**CLOCK, "type": "custom", **CACHED}], tool_choice=choice).tools
    assert (tools.max_calls, tools.must_call, tools.name) == expected
    assert [dict(tool["function"]) for tool in tools.tools] == [
        WEATHER_TOOL["function"],
        {"name": "clock", "parameters": CLOCK["input_schema"]},
    ]


def test_without_a_choice_the_model_is_shown_no_tools():
    assert parsed(tools=[WEATHER], tool_choice={"type": "none"}).tools.tools == ()
    assert parsed(tool_choice={"type": "auto"}).tools.tools == ()


@pytest.mark.parametrize(
    ("fields", "effort", "param"),
    [
        ({}, None, "output_config.effort"),
        ({"output_config": {"effort": "max"}}, "max", "output_config.effort"),
        ({"thinking": {"type": "disabled"}}, "none", "thinking"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, "none", "thinking"),
        ({"thinking": {"type": "adaptive"}}, "medium", "thinking"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low", "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low", "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4095}}, "low", "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "medium", "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 16384}}, "high", "thinking"),
    ],
)
def test_thinking_is_an_effort(fields, effort, param):
    chat = parsed(**fields)
    assert (chat.effort, chat.effort_param) == (effort, param)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"reasoning_effort"}, {"reasoning_effort": "medium"}),
        ({"enable_thinking"}, {"enable_thinking": True}),
        ((), {}),
    ],
)
async def test_thinking_is_a_wish_that_a_template_may_not_know(variables, expected):
    async with serving() as served:
        served.engine.tokenizer.variables = set(variables)
        await answer_of(served, last("a"), thinking={"type": "adaptive"})
        assert served.engine.tokenizer.chats[-1][1] == expected


def test_an_answer_may_have_a_form_under_either_name():
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    for fields in ({"output_config": {"format": schema}}, {"output_format": schema}):
        guide = parsed(**fields).options.guide
        assert guide.guide.text == '{"type":"object"}'
        assert guide.param.endswith("format.schema")


def test_the_way_of_sampling_is_the_engines():
    sampling = parsed(temperature=0, top_p=0.5, top_k=3, stop_sequences=["a", "\n"]).options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.5, 3)
    assert (sampling.max_tokens, sampling.stop) == (9, ("a", "\n"))


def test_a_count_takes_the_body_of_its_message():
    body = asks(
        tools=[WEATHER], tool_choice={"type": "any"}, thinking={"type": "adaptive"}, system="x", stop_sequences=["x"]
    )
    counted, answered = parse_count(body).chat, parse_message(body).chat
    assert (counted.messages, counted.effort, counted.tools.tools) == (
        answered.messages,
        answered.effort,
        answered.tools.tools,
    )
    assert not counted.tools.must_call


@pytest.fixture(scope="module")
def corpus():
    """Every bad body with the field that is at fault."""
    changes = [({"messages": messages}, param) for messages, param in BAD_MESSAGES] + BAD_FIELDS
    assert len(changes) > 150
    return [({**asks(), **change}, param) for change, param in changes]


async def test_a_bad_body_is_refused_with_its_field_and_no_engine_ever_sees_it(corpus):
    not_counted = {"max_tokens", "tool_choice", "output_format"}
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        wrong = []
        for body, param in corpus:
            for path in (MESSAGES, COUNT):
                if path == COUNT and param in not_counted:
                    continue  # a count needs no limit, and does not look at forms
                async with http.post(path, json=body) as answer:
                    error = (await answer.json()).get("error", {})
                    shown = (answer.status, error.get("type"), error.get("param"))
                if shown != (400, "invalid_request_error", param) or len(error["message"]) > 500:
                    wrong.append((path, str(body)[:300], param, answer.status, error))
        assert not wrong, "\n".join(map(str, wrong))
        assert served.engine.arrivals.empty()
        assert served.registry.waits.empty()


@pytest.mark.parametrize("parse", [parse_message, parse_count])
def test_a_refused_thread_is_told_so_that_a_client_goes_on_without_one(parse):
    with pytest.raises(InvalidField) as caught:
        parse(asks(thread={"type": "create"}))
    assert caught.value.details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert parse(asks(thread=None))


RICH = asks(
    system=[TEXT],
    tools=[WEATHER, CLOCK],
    tool_choice={"type": "tool", "name": "clock"},
    thinking={"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
    output_config={"effort": "low"},
    stop_sequences=["x"],
    messages=[USER, assistant(THOUGHT, TEXT, CALL), user({**RESULT, "content": [TEXT]}, TEXT), USER],
)
ODD = [None, True, -1, 1.5, 2**64, "", "user", "x" * 2000, [], {}, [None], {"type": None}, CALL, RESULT, TEXT]


def places(value, place=()):
    """Every place inside a body."""
    elements = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, element in elements:
        yield (*place, key)
        yield from places(element, (*place, key))


def mutated(random):
    """A good body with something left out, or something odd in its place."""
    body = deepcopy(RICH)
    for _ in range(random.choice((1, 1, 2))):
        *way, last_key = random.choice(list(places(body)))
        parent = reduce(getitem, way, body)
        if random.random() < 0.3:
            del parent[last_key]
        else:
            parent[last_key] = deepcopy(random.choice(ODD))
    return body


@pytest.mark.parametrize("parse", [parse_message, parse_count])
def test_whatever_is_odd_in_a_body_is_refused_by_name_or_taken(parse):
    random = Random(1)
    refusals = [refusal for _ in range(2000) if (refusal := refusal_of(parse, mutated(random))) is not None]
    assert 1000 < len(refusals) < 2000
    assert [refusal for refusal in refusals if not refusal.param or len(str(refusal)) > 500] == []


def refusal_of(parse, body):
    try:
        parse(body)
    except ApiError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("body", "headers", "status", "kind"),
    [
        (b"{", {}, 400, "invalid_request_error"),
        (b"[]", {}, 400, "invalid_request_error"),
        (b'{"a": NaN}', {}, 400, "invalid_request_error"),
        (b"\xff", {}, 400, "invalid_request_error"),
        (b'{"messages":' + b"[" * 5000, {}, 400, "invalid_request_error"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "invalid_request_error"),
        (b"{}", {"Host": "evil.example"}, 403, "permission_error"),
        (b"{}", {"Origin": "https://evil.example"}, 403, "permission_error"),
    ],
)
async def test_what_the_edge_refuses_has_anthropics_shape(body, headers, status, kind):
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        headers = {"Content-Type": "application/json", **headers}
        async with http.post(MESSAGES, data=body, headers=headers) as answer:
            refused = await answer.json()
    assert (answer.status, refused["type"], refused["error"]["type"]) == (status, "error", kind)
    assert refused["request_id"] == answer.headers["request-id"]


async def test_other_methods_and_paths_below_are_refused_in_anthropics_shape():
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        async with http.get(MESSAGES) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (405, "method_not_allowed")
        async with http.post(f"{MESSAGES}/batches", json={}) as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (404, "not_found_error")
        async with http.post("/v1/messagesx", json={}) as answer:
            assert "type" not in await answer.json()
