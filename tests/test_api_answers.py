"""The OpenAI calls over a programmable engine: the shapes of answers, and what the engine is given."""

import asyncio
import json

import openai
import pytest
from api_calls import CHAT, TEXT, ask, client_of, hello, refusal
from api_fakes import HELLO, VOCABULARY, events, last, piece, post, serving
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mlxd.daemon.settings import EngineSettings, ModelSettings, ModelsSettings, PresetSettings, SamplingSettings
from mlxd.engines import errors as engine_errors
from mlxd.engines.types import FinishReason, RequestOutput, Usage
from mlxd.registry import errors as registry_errors


async def test_a_chat_is_answered_in_a_shape_that_the_client_takes_strictly():
    async with serving() as served:
        status, text = await ask(served, hello(), CHAT, piece("Hel"), last("lo"), **{"X-Request-Id": "r-1"})
    assert status == 200
    answer = ChatCompletion.model_validate_json(text, strict=True)
    assert answer.id == "chatcmpl-r-1"
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 3, 9)
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.model == "m"
    vendor = json.loads(text)["mlxd"]
    assert set(vendor) == {"queue_s", "load_s", "prefill_s", "ttft_s", "decode_tps", "cancelled"}
    assert (vendor["queue_s"], vendor["load_s"], vendor["prefill_s"]) == (0.5, 0.25, 0.1)
    assert vendor["ttft_s"] >= 0.2
    assert vendor["decode_tps"] == 30.0
    assert vendor["cancelled"] is False


async def stream_of(served, body, path, *pieces):
    """The events of a stream whose pieces come one by one."""
    reader, writer = await post(served.port, path, body)
    request = await served.engine.arrivals.get()
    collected = b""
    for item in pieces:
        served.engine.put(request, item)
        collected += await reader.readuntil(b"[DONE]\n\n" if item.finish_reason else item.text.encode() + b'"')
    writer.close()
    lines = collected.decode().replace("\r\n", "\n").split("\n")
    return events("\n\n".join(line for line in lines if line.startswith("data:")))


async def test_a_stream_is_role_text_finish_and_done():
    async with serving() as served:
        seen = await stream_of(served, hello(stream=True), CHAT, piece("Hel"), piece("lo"), last("!"))
    assert seen.pop() == "[DONE]"
    for event in seen:
        ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
    deltas = [event["choices"][0]["delta"] for event in seen]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {"content": "!"}, {}]
    assert [event["choices"][0]["finish_reason"] for event in seen] == [None, None, None, None, "stop"]
    assert len({(event["id"], event["created"], event["system_fingerprint"]) for event in seen}) == 1
    assert all("usage" not in event for event in seen)
    assert ["mlxd" in event for event in seen] == [False] * 4 + [True]


async def test_with_include_usage_the_last_chunk_has_the_usage_and_no_choices():
    body = hello(stream=True, stream_options={"include_usage": True})
    async with serving() as served:
        seen = await stream_of(served, body, CHAT, piece("a"), last(""))
    assert seen.pop() == "[DONE]"
    usage = seen.pop()
    ChatCompletionChunk.model_validate_json(json.dumps(usage), strict=True)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 9
    assert usage["mlxd"]["cancelled"] is False
    assert all(event["usage"] is None and "mlxd" not in event for event in seen)


async def test_a_completion_is_text_streamed_or_not():
    body = {"model": "m", "prompt": "once"}
    async with serving() as served:
        _, text = await ask(served, body, TEXT, piece(" upon"), last(" a", FinishReason.LENGTH))
        seen = await stream_of(served, {**body, "stream": True}, TEXT, piece(" upon"), last(" a", FinishReason.LENGTH))
    whole = Completion.model_validate_json(text, strict=True)
    assert whole.id.startswith("cmpl-")
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (" upon a", "length")
    assert seen.pop() == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in seen) == " upon a"
    assert seen[-1]["choices"][0]["finish_reason"] == "length"
    assert {event["object"] for event in seen} == {"text_completion"}


async def test_the_openai_client_reads_whole_answers_streams_and_errors():
    async with (
        serving() as served,
        client_of(served) as client,
    ):

        async def feed():
            request = await served.engine.arrivals.get()
            served.engine.put(request, piece("Hi "))
            served.engine.put(request, last("there"))

        feeding = asyncio.ensure_future(feed())
        answer = await client.chat.completions.create(**HELLO)
        await feeding
        assert answer.choices[0].message.content == "Hi there"
        feeding = asyncio.ensure_future(feed())
        options = {"include_usage": True}
        stream = await client.chat.completions.create(**HELLO, stream=True, stream_options=options)
        chunks = [chunk async for chunk in stream]
        await feeding
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hi there"
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 4
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(**HELLO, n=17)
        assert (bad.value.code, bad.value.param) == ("invalid_request", "n")
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nobody", messages=HELLO["messages"])
        assert (await client.models.retrieve("org/embed")).id == "org/embed"


async def test_the_fingerprint_is_the_same_for_every_answer_of_one_model():
    async with serving() as served:
        answers = [json.loads((await ask(served, hello(), CHAT, last("x")))[1]) for _ in range(2)]
    assert answers[0]["system_fingerprint"] == answers[1]["system_fingerprint"]
    assert answers[0]["id"] != answers[1]["id"]


async def test_outputs_without_text_make_no_chunks():
    quiet = RequestOutput("", Usage(6, 1))
    async with serving() as served:
        status, text = await ask(served, hello(stream=True), CHAT, quiet, last("x"))
    assert status == 200
    contents = [event["choices"][0]["delta"].get("content") for event in events(text)[:-1]]
    assert contents == ["", "x", None]


async def given(served, body, path=CHAT):
    asking = asyncio.ensure_future(ask(served, body, path))
    request = await served.engine.arrivals.get()
    served.engine.put(request, last(""))
    assert (await asking)[0] == 200
    return request


PRESET = PresetSettings("m-cold", SamplingSettings(temperature=0.0), {"enable_thinking": False})


async def test_aliases_and_presets_reach_their_model_with_their_values():
    async with serving(model=(ModelSettings("m", presets=(PRESET,)),)) as served:
        plain = await given(served, hello(model="gpt-4o"))
        cold = await given(served, hello(model="m-cold"))
        override = await given(served, hello(model="m-cold", chat_template_kwargs={"enable_thinking": True, "x": 1}))
        assert [served.registry.waits.get_nowait()[0] for _ in range(3)] == ["m", "m", "m"]
    assert (plain.sampling.temperature, cold.sampling.temperature) == (1.0, 0.0)
    assert override.sampling.temperature == 0.0
    templates = [template for _, template in served.engine.tokenizer.chats]
    assert templates == [{}, {"enable_thinking": False}, {"enable_thinking": True, "x": 1}]


async def test_a_default_model_serves_requests_that_name_none():
    async with serving(models=ModelsSettings(default="gpt-4o")) as served:
        for body in ({"messages": HELLO["messages"]}, hello(model=None), hello(model="")):
            await given(served, body)
    async with serving() as served:
        status, error = await refusal(served, {"messages": HELLO["messages"]})
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "model")


async def test_a_raw_prompt_goes_on_where_it_stops_and_a_chat_does_not():
    async with serving() as served:
        raw = await given(served, {"model": "m", "prompt": [5, 6]}, TEXT)
        chat = await given(served, hello())
    assert (raw.prompt, raw.continues_text, chat.continues_text) == ((5, 6), True, False)


async def test_a_default_limit_is_what_the_context_has_left():
    async with serving(engine=EngineSettings(max_tokens=5000)) as served:
        assert (await given(served, hello())).sampling.max_tokens == 100 - len("hello>")
        assert (await given(served, hello(max_tokens=7))).sampling.max_tokens == 7


@pytest.mark.parametrize(
    ("body", "path", "code", "param"),
    [
        (hello(logit_bias={str(VOCABULARY): 1}), CHAT, "invalid_request", "logit_bias"),
        ({"model": "m", "prompt": [VOCABULARY]}, TEXT, "invalid_request", "prompt"),
        ({"model": "m", "prompt": [-1]}, TEXT, "invalid_request", "prompt"),
        ({"model": "m", "prompt": [2**70]}, TEXT, "invalid_request", "prompt"),
        ({"model": "m", "prompt": ""}, TEXT, "invalid_request", "prompt"),
        (hello(max_tokens=95), CHAT, "context_length_exceeded", "messages"),
        ({"model": "m", "prompt": "x" * 100}, TEXT, "context_length_exceeded", "prompt"),
        (hello(model="org/embed"), CHAT, "unsupported_capability", "model"),
    ],
)
async def test_what_the_model_cannot_serve_is_refused_before_its_engine(body, path, code, param):
    async with serving() as served:
        status, error = await refusal(served, body, path)
        assert (status, error["code"], error["param"]) == (400, code, param)
        assert served.engine.arrivals.empty()


async def test_a_template_that_refuses_is_a_bad_request():
    def refuse(messages, template=None, tools=None):
        raise engine_errors.InvalidRequest("the chat template refused the messages: no", "messages")

    async with serving() as served:
        served.engine.tokenizer.encode_chat = refuse
        assert (await refusal(served, hello()))[1]["param"] == "messages"


async def test_an_unknown_model_is_answered_with_similar_names():
    async with serving() as served:
        status, error = await refusal(served, hello(model="gpt-4"))
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["details"]["suggestions"] == ["gpt-4o"]


@pytest.mark.parametrize(
    ("header", "seconds"), [("5s", 5.0), ("0", 0.0), ("250ms", 0.25), ("1h", 120.0), ("never", 120.0), (None, None)]
)
async def test_the_client_may_shorten_its_wait_but_not_lengthen_it(header, seconds):
    async with serving() as served:
        served.registry.refusal = registry_errors.ModelWaitTimeout("m", 1, 1)
        headers = {} if header is None else {"X-Mlxd-Max-Wait": header}
        assert (await refusal(served, hello(), **headers))[1]["code"] == "model_wait_timeout"
        assert (await served.registry.waits.get())[1] == seconds


@pytest.mark.parametrize("header", ["soon", "-1", "", "5x", "nan", "1e3"])
async def test_a_wait_that_is_no_duration_is_refused(header):
    async with serving() as served:
        status, error = await refusal(served, hello(), **{"X-Mlxd-Max-Wait": header})
        assert (status, error["param"]) == (400, "X-Mlxd-Max-Wait")
        assert served.registry.waits.empty()
