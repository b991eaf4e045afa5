"""Tools: what reaches the template and the engine, and how calls and reasoning are printed."""

import asyncio
import json
import re
from types import SimpleNamespace

import pytest
from api_calls import CHAT, answered, ask, client_of, hello, refusal
from api_fakes import HELLO, events, last, serving
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mlxd.daemon.api import tool_use
from mlxd.daemon.api.openai.parsing import parse_chat
from mlxd.daemon.api.refusals import ApiError
from mlxd.daemon.api.wanted_guide import ANY_OBJECT
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import ChatFormat, FinishReason, Guide, GuideKind, RequestOutput, ToolCall, Usage

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
NAMED = {"type": "function", "function": {"name": "clock"}}
A_GUIDE = Guide(GuideKind.GRAMMAR, "start: /x/")


def chat(**fields):
    return parse_chat({"messages": HELLO["messages"], **fields})


def calls(*made, text="", reasoning="", finish=None):
    return RequestOutput(text, Usage(6, 3), finish_reason=finish, reasoning=reasoning, tool_calls=made)


@pytest.fixture
def guided(monkeypatch):
    """What was asked of the maker of grammars, which gives `A_GUIDE`; `refusals` are what its compiler says."""
    asked, forms = [], []

    def make(tokenizer, tools, name, *, parallel, form):
        if form is not None:
            forms.append(form)
        asked.append(([tool["function"]["name"] for tool in tools], name, parallel))
        return A_GUIDE

    def check(tokenizer, guide):
        assert guide is A_GUIDE
        if refusals:
            raise InvalidRequest(refusals.pop())
        return guide

    refusals = []
    monkeypatch.setattr(tool_use, "guide_for_tools", make)
    monkeypatch.setattr(tool_use, "check_guide", check)
    return SimpleNamespace(asked=asked, forms=forms, refusals=refusals)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": "weather"}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, {"type": "custom", "custom": {"name": "x"}}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 129}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [WEATHER] * 513}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"tools": [WEATHER], "tool_choice": "required", "min_tokens": 1}, "min_tokens"),
        ({"tools": [WEATHER], "tool_choice": "required", "guided_regex": "x"}, "tool_choice"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_tools_that_cannot_be_served_name_their_field(fields, param):
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert refused.value.param == param
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "fields", [{}, {"tools": []}, {"tools": None}, {"tool_choice": "auto"}, {"tool_choice": "none"}]
)
def test_no_tools_are_no_tools_however_they_are_said(fields):
    assert chat(**fields) == chat()


def test_tools_that_are_not_to_be_called_are_not_offered():
    assert chat(tools=[WEATHER], tool_choice="none") == chat()
    assert chat(tools=[WEATHER], tool_choice="none", response_format={"type": "json_object"}).tools.tools == ()


def test_a_template_gets_tools_with_parameters_and_without_nulls():
    sparse = {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}
    offered = chat(tools=[WEATHER, CLOCK, sparse]).tools.tools
    nothing = {"type": "object", "properties": {}}
    assert offered[0] == WEATHER
    assert [tool["function"] for tool in offered[1:]] == [
        {"name": "clock", "parameters": nothing},
        {"name": "f", "parameters": nothing},
    ]


async def given(served, **fields):
    """The engine's request and the tools that the template got."""
    requests = []

    def script(arrived):
        requests.extend(arrived)
        served.engine.put(arrived[0], last("x"))

    status, text = await answered(served, hello(**fields), script=script)
    assert status == 200, text
    return requests[0], served.engine.tokenizer.offered[-1]


async def test_a_chat_is_always_read_as_one_and_a_completion_never():
    async with serving() as served:
        request, offered = await given(served)
        assert (request.chat, offered) == (ChatFormat(), None)
        asking = asyncio.ensure_future(ask(served, {"model": "m", "prompt": "x"}, "/v1/completions"))
        raw = await served.engine.arrivals.get()
        served.engine.put(raw, last(""))
        await asking
        assert raw.chat is None


async def test_offered_tools_reach_the_template_and_the_reader_of_the_answer():
    async with serving() as served:
        request, offered = await given(served, tools=[WEATHER])
        assert offered == request.chat.tools == (WEATHER,)
        assert request.chat.max_calls is None
        assert request.sampling.guide is None
        request, offered = await given(served, tools=[WEATHER], tool_choice="none")
        assert (request.chat.tools, offered) == ((), None)
        request, _ = await given(served, tools=[WEATHER], parallel_tool_calls=False)
        assert request.chat.max_calls == 1


async def test_a_call_that_must_be_made_is_a_form_of_the_answer(guided):
    async with serving() as served:
        request, _ = await given(served, tools=[WEATHER, CLOCK], tool_choice="required")
        assert (request.sampling.guide, request.chat.max_calls) == (A_GUIDE, None)
        request, offered = await given(served, tools=[WEATHER, CLOCK], tool_choice=NAMED)
        assert (request.sampling.guide, request.chat.max_calls) == (A_GUIDE, 1)
        assert len(offered) == 2
        await given(served, tools=[CLOCK], tool_choice="required", parallel_tool_calls=False)
    names = ["weather", "clock"]
    assert guided.asked == [(names, None, True), (names, "clock", False), (["clock"], None, False)]


async def test_an_answer_with_a_form_may_be_a_call_instead(guided):
    async with serving() as served:
        request, offered = await given(served, tools=[WEATHER], response_format={"type": "json_object"})
        assert (request.sampling.guide, offered) == (A_GUIDE, (WEATHER,))
    assert guided.forms == [ANY_OBJECT]


async def test_tools_whose_parameters_cannot_be_compiled_cannot_be_required(guided):
    guided.refusals.append("it is too big")
    async with serving() as served:
        status, error = await refusal(served, hello(tools=[WEATHER], tool_choice="required"))
        assert (status, error["param"], error["message"]) == (400, "tool_choice", "tool_choice: it is too big")
        assert served.engine.arrivals.empty()


async def test_a_model_whose_calls_have_no_grammar_refuses_to_be_made_to_call(monkeypatch):
    def refuse(tokenizer, tools, name, *, parallel, form):
        raise InvalidRequest("calls of this model cannot be written as a grammar")

    monkeypatch.setattr(tool_use, "guide_for_tools", refuse)
    async with serving() as served:
        status, error = await refusal(served, hello(tools=[WEATHER], tool_choice="required"))
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "tool_choice")
        assert "as a grammar" in error["message"]


async def test_a_model_that_makes_no_calls_refuses_tools_but_not_earlier_calls():
    call = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    told = [
        *HELLO["messages"],
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "c"},
    ]
    async with serving() as served:
        served.engine.tokenizer.has_tools = False
        status, error = await refusal(served, hello(tools=[WEATHER]))
        assert (status, error["code"], error["param"]) == (400, "unsupported_capability", "tools")
        assert served.engine.arrivals.empty()
        assert (await given(served, tools=[WEATHER], tool_choice="none"))[1] is None
        await given(served, messages=told)
    assert served.engine.tokenizer.chats[-1][0][1]["tool_calls"][0]["function"]["arguments"] == {}


PARIS, ROME = ToolCall("weather", '{"city": "Paris"}'), ToolCall("weather", '{"city": "Rome"}')


async def test_calls_and_reasoning_are_parts_of_the_message():
    script = calls(PARIS, reasoning="Hm."), calls(ROME, finish=FinishReason.STOP)
    async with serving() as served:
        status, text = await ask(served, hello(tools=[WEATHER]), CHAT, *script)
    assert status == 200
    [choice] = ChatCompletion.model_validate_json(text, strict=True).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.reasoning_content == "Hm."
    made = choice.message.tool_calls
    assert [(call.type, call.function.name, call.function.arguments) for call in made] == [
        ("function", "weather", PARIS.arguments),
        ("function", "weather", ROME.arguments),
    ]
    assert made[0].id != made[1].id
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call.id) for call in made)


async def test_an_answer_without_calls_or_reasoning_has_no_such_keys():
    async with serving() as served:
        _, text = await ask(served, hello(tools=[WEATHER]), CHAT, last("No."))
        _, streamed = await ask(served, hello(tools=[WEATHER], stream=True), CHAT, last("No."))
    message = json.loads(text)["choices"][0]["message"]
    assert message == {"content": "No.", "role": "assistant", "refusal": None}
    assert "tool_calls" not in streamed
    assert "reasoning" not in streamed


async def test_text_beside_calls_is_kept_and_no_text_at_all_is_empty_text():
    async with serving() as served:
        _, text = await ask(served, hello(), CHAT, calls(PARIS, text="I look.", finish=FinishReason.STOP))
        assert json.loads(text)["choices"][0]["message"]["content"] == "I look."
        _, text = await ask(served, hello(), CHAT, last(""))
        assert json.loads(text)["choices"][0]["message"]["content"] == ""


async def test_a_streamed_call_is_its_name_and_then_its_arguments():
    script = calls(PARIS, text="I look.", reasoning="Hm."), calls(ROME), last("")
    async with serving() as served:
        _, text = await ask(served, hello(tools=[WEATHER], stream=True), CHAT, *script)
    seen = events(text)
    assert seen.pop() == "[DONE]"
    for event in seen:
        ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
    deltas = [event["choices"][0]["delta"] for event in seen]
    ids = [delta["tool_calls"][0]["id"] for delta in deltas if "id" in delta.get("tool_calls", [{}])[0]]
    assert len(set(ids)) == 2

    def named(index):
        return {
            "tool_calls": [
                {"index": index, "id": ids[index], "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        }

    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm."},
        {"content": "I look."},
        named(0),
        {"tool_calls": [{"index": 0, "function": {"arguments": PARIS.arguments}}]},
        named(1),
        {"tool_calls": [{"index": 1, "function": {"arguments": ROME.arguments}}]},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in seen] == [None] * 7 + ["tool_calls"]


async def test_the_openai_client_puts_streamed_calls_together():
    async with serving() as served, client_of(served) as client:

        async def feed():
            request = await served.engine.arrivals.get()
            for output in (calls(PARIS), calls(ROME, finish=FinishReason.STOP)):
                served.engine.put(request, output)

        feeding = asyncio.ensure_future(feed())
        async with client.chat.completions.stream(**HELLO, tools=[WEATHER]) as stream:
            answer = await stream.get_final_completion()
        await feeding
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls] == ["Paris", "Rome"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "cancelled", "shown"), [("length", False, "length"), ("stop", True, "stop")])
async def test_an_answer_that_was_cut_off_after_a_call_says_so(stream, reason, cancelled, shown):
    script = calls(PARIS), last("", FinishReason(reason), cancelled=cancelled)
    async with serving() as served:
        _, text = await ask(served, hello(tools=[WEATHER], stream=stream), CHAT, *script)
    final = events(text)[-2] if stream else json.loads(text)
    assert final["choices"][0]["finish_reason"] == shown


async def test_the_models_own_ids_are_kept_unless_they_repeat():
    twice = ToolCall("clock", "{}", "functions.clock:0")
    async with serving() as served:
        _, text = await ask(served, hello(), CHAT, calls(twice, twice, finish=FinishReason.STOP))
    first, second = (call["id"] for call in json.loads(text)["choices"][0]["message"]["tool_calls"])
    assert first == "functions.clock:0"
    assert re.fullmatch("[A-Za-z0-9]{9}", second)


async def test_ids_of_calls_are_different_in_all_choices_and_indexes_count_in_each():
    own = ToolCall("clock", "{}", "0")

    def script(requests):
        for request in requests:
            served.engine.put(request, calls(own, PARIS, finish=FinishReason.STOP))

    async with serving() as served:
        _, text = await answered(served, hello(n=3, stream=True), script=script)
    made = [
        (choice["index"], call["index"], call["id"])
        for event in events(text)[:-1]
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls", ())
        if "id" in call
    ]
    assert len({name for *_, name in made}) == 6
    assert sorted((choice, call) for choice, call, _ in made) == [(n, m) for n in range(3) for m in range(2)]


async def test_reasoning_alone_is_an_answer_too():
    async with serving() as served:
        _, text = await ask(served, hello(), CHAT, calls(reasoning="Hm", finish=FinishReason.LENGTH))
    message = json.loads(text)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "Hm")


@pytest.mark.parametrize(
    ("known", "effort", "template"),
    [
        ({"reasoning_effort", "enable_thinking"}, "none", {"reasoning_effort": "none"}),
        ({"reasoning_effort"}, "high", {"reasoning_effort": "high"}),
        ({"enable_thinking"}, "none", {"enable_thinking": False}),
        ({"enable_thinking"}, "minimal", {"enable_thinking": False}),
        ({"enable_thinking"}, "low", {"enable_thinking": True}),
        (set(), None, {}),
    ],
)
async def test_reasoning_effort_is_said_in_the_words_of_the_template(known, effort, template):
    async with serving() as served:
        served.engine.tokenizer.variables = known
        await given(served, reasoning_effort=effort)
        assert served.engine.tokenizer.chats[-1][1] == template


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        ("{% if enable_thinking %}<think>{% endif %}", True),
        ("{% if not_enable_thinking_x %}{% endif %}", False),
        ({"default": "x", "tool_use": "{{ enable_thinking }}"}, True),
        ({"default": "x"}, False),
        (None, False),
    ],
)
def test_a_template_reads_the_variables_that_are_in_its_text(template, reads):
    assert Tokenizer(SimpleNamespace(chat_template=template)).template_reads("enable_thinking") is reads


async def test_a_template_that_knows_no_effort_refuses_it():
    async with serving() as served:
        status, error = await refusal(served, hello(reasoning_effort="low"))
        assert (status, error["code"], error["param"]) == (400, "unsupported_capability", "reasoning_effort")


def test_a_tool_may_carry_what_its_template_reads():
    tool = {**WEATHER, "x": 1, "function": {**WEATHER["function"], "return": {"type": "string"}}}
    assert chat(tools=[tool]).tools.tools == (tool,)
