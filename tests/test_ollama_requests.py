"""What of a request to the Ollama calls the engine and the template are given."""

import asyncio
import json

import pytest
from api_calls import ask, within
from api_fakes import answer_head, last, post, serving
from ollama_calls import CHAT, GENERATE, USER, asked_of, chat, client_of, generate

from mlxd.daemon.api.ollama.parsing import parse_chat
from mlxd.daemon.settings import ModelSettings, ModelsSettings, PresetSettings, SamplingSettings
from mlxd.engines.types import GuideKind

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


async def test_options_are_the_engines_parameters():
    options = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 7,
        "num_predict": 12,
        "stop": ["x", "y"],
        "repeat_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
    }
    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).chat("m", [USER], options=options), last(""))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.stop) == (7, 12, ("x", "y"))
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, 0.25, -0.5)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"seed": -1}, "seed", None),
        ({"seed": -2}, "seed", 2**64 - 2),
        ({"num_predict": -1}, "max_tokens", 30),
        ({"num_predict": -2}, "max_tokens", 30),
        ({"top_k": -1}, "top_k", 0),
        ({"repeat_penalty": 0}, "repetition_penalty", 1.0),
        ({"temperature": None}, "temperature", 0.25),
        ({"stop": "x"}, "stop", ("x",)),
        (None, "temperature", 0.25),
    ],
)
async def test_values_that_ask_for_nothing_leave_it_to_the_model(options, name, value):
    entry = ModelSettings("m", sampling=SamplingSettings(temperature=0.25, max_tokens=30))
    async with serving(model=(entry,)) as served:
        asking = asyncio.ensure_future(ask(served, chat(options=options), CHAT))
        request = await within(served.engine.arrivals.get())
        served.engine.put(request, last(""))
        await asking
    assert getattr(request.sampling, name) == value


async def test_what_changes_nothing_is_named_in_the_head():
    options = {"num_ctx": 4096, "num_gpu": 1, "use_mmap": True, "temperature": 0, "mirostat": 0, "num_thread": None}
    async with serving() as served:
        reader, writer = await post(served.port, CHAT, chat(options=options, stream=False))
        served.engine.put(await within(served.engine.arrivals.get()), last("x"))
        _, headers = await answer_head(reader)
        writer.close()
    assert headers["x-mlxd-ignored"].split(", ") == ["options.num_ctx", "options.num_gpu", "options.use_mmap"]


@pytest.mark.parametrize(
    ("wanted", "text"), [("json", '{"type":"object"}'), (SCHEMA, json.dumps(SCHEMA, separators=(",", ":")))]
)
async def test_a_format_is_the_answers_guide(wanted, text, monkeypatch):
    seen = []

    def check_guide(_, guide):
        seen.append(guide)
        return guide

    monkeypatch.setattr("mlxd.daemon.api.wanted_guide.check_guide", check_guide)
    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).generate("m", "hi", format=wanted), last(""))
    assert (request.sampling.guide.kind, request.sampling.guide.text) == (GuideKind.JSON_SCHEMA, text)
    assert seen == [request.sampling.guide]


async def test_no_format_is_no_guide():
    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).chat("m", [USER], format=""), last(""))
    assert request.sampling.guide is None


THINKING = [
    ({"enable_thinking"}, False, True, {"enable_thinking": True}),
    ({"enable_thinking"}, True, False, {"enable_thinking": False}),
    ({"enable_thinking"}, False, "low", {"enable_thinking": True}),
    ({"reasoning_effort"}, False, "low", {"reasoning_effort": "low"}),
    ({"reasoning_effort"}, False, True, {}),
    (set(), True, True, {}),
    (set(), False, False, {}),
    (set(), False, None, {}),
]


@pytest.mark.parametrize(("reads", "marks", "think", "variables"), THINKING)
async def test_thinking_is_said_in_the_words_of_the_template(reads, marks, think, variables):
    async with serving() as served:
        served.engine.tokenizer.variables = reads
        served.engine.tokenizer.has_reasoning = marks
        status, text = await ask(served, chat(think=think), CHAT, last("x"))
        assert status == 200, text
        [(_, template)] = served.engine.tokenizer.chats
    assert template == variables


@pytest.mark.parametrize("think", [True, "high"])
async def test_a_model_that_cannot_think_does_not_pretend(think):
    async with serving() as served:
        served.engine.tokenizer.has_reasoning = False
        status, text = await ask(served, chat(think=think), CHAT)
    assert (status, json.loads(text)["code"], json.loads(text)["param"]) == (400, "unsupported_capability", "think")


async def test_messages_reach_the_template_in_its_form():
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?", "images": []},
        {"role": "assistant", "thinking": "Look.", "tool_calls": [call, call, {"id": "own", **call}]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "own"},
        {"role": "tool", "content": "Sunny.", "tool_name": "get_weather"},
        {"role": "tool", "content": "Foggy."},
        {"role": "tool", "content": "Late."},
    ]
    async with serving() as served:
        status, text = await ask(served, chat(messages=messages), CHAT, last("x"))
        assert status == 200, text
        [(seen, _)] = served.engine.tokenizer.chats
    assert seen[0] == {"role": "system", "content": "Be brief."}
    assert seen[1] == {"role": "user", "content": "Weather?"}
    assert seen[2]["reasoning_content"] == "Look."
    assert seen[2]["content"] == ""
    assert [call["id"] for call in seen[2]["tool_calls"]] == ["call00001", "call00002", "own"]
    assert seen[2]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": {"city": "Paris"}}
    assert [message.get("tool_call_id") for message in seen[3:]] == ["own", "call00001", "call00002", None]
    assert [message.get("name") for message in seen[3:]] == [None, "get_weather", None, None]


@pytest.mark.parametrize("answered", [{}, {"tool_name": "g"}, {"tool_call_id": "other"}])
def test_ten_thousand_calls_and_their_answers_are_put_together_at_once(answered):
    calls = [{"function": {"name": name}} for name in ("f", "g") for _ in range(5_000)]
    answers = [{"role": "tool", "content": "x", **answered}] * 10_000
    request = parse_chat(chat(messages=[{"role": "assistant", "tool_calls": calls}, *answers])).request
    seen = [message.get("tool_call_id") for message in request.messages[1:]]
    ids = [f"call{number:05d}" for number in range(1, 10_001)]
    of_g = [*ids[5_000:], *[None] * 5_000]
    assert seen == (["other"] * 10_000 if "tool_call_id" in answered else of_g if answered else ids)


async def test_tools_reach_the_template_and_the_parser_in_openais_form():
    def get_weather(city: str) -> str:
        """The weather.

        Args:
          city: Where.
        """
        return city

    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).chat("m", [USER], tools=[get_weather]), last("x"))
        [offered] = served.engine.tokenizer.offered
    [tool] = offered
    assert (tool["type"], tool["function"]["name"]) == ("function", "get_weather")
    assert tool["function"]["parameters"]["properties"]["city"]["type"] == "string"
    assert request.chat.tools == tuple(offered)


async def test_a_prompt_is_a_users_message_after_the_systems():
    async with serving() as served:
        status, _ = await ask(served, generate(system="Be brief."), GENERATE, last("x"))
        assert status == 200
        [(seen, _)] = served.engine.tokenizer.chats
    assert seen == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


async def test_a_raw_prompt_goes_on_as_it_is():
    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).generate("m", "Once", raw=True), last("x"))
        assert served.engine.tokenizer.chats == []
    assert request.prompt == tuple(map(ord, "Once"))
    assert request.continues_text
    assert request.chat is None


async def test_a_preset_and_the_default_model_are_meant_as_everywhere():
    preset = PresetSettings("m-cold", SamplingSettings(temperature=0.0), {"enable_thinking": False})
    entry = ModelSettings("m", presets=(preset,))
    async with serving(model=(entry,), models=ModelsSettings(default="m")) as served:
        asking = asyncio.ensure_future(ask(served, {"messages": [USER], "stream": False}, CHAT))
        served.engine.put(await within(served.engine.arrivals.get()), last("x"))
        assert json.loads((await asking)[1])["model"] == "m"
        request, answer = await asked_of(served, client_of(served).chat("m-cold:latest", [USER]), last("x"))
    assert (request.sampling.temperature, answer.model) == (0.0, "m-cold:latest")
    assert served.engine.tokenizer.chats[-1][1] == {"enable_thinking": False}
