"""Several answers in one request: n, and several prompts."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest
from api_calls import CHAT, TEXT, answered, client_of, hello, refusal, until, within
from api_fakes import HELLO, events, last, piece, post, serving
from msgspec import structs
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mlxd.daemon.api.openai.parsing import parse_chat
from mlxd.daemon.api.sampling import for_choice, sampling_params
from mlxd.daemon.settings import Settings
from mlxd.engines import errors as engine_errors
from mlxd.engines.types import FinishReason, SamplingParams, Usage
from mlxd.registry.names import Resolved


def counted(text, completion=3, cached=4, prompt=6, **fields):
    return structs.replace(last(text), usage=Usage(prompt, completion, cached), **fields)


async def test_n_answers_are_choices_of_one_answer_with_one_usage():
    def script(requests):
        for number, request in reversed(list(enumerate(requests))):
            served.engine.put(request, piece(f"a{number}"))
            served.engine.put(request, counted("!", completion=number + 1, cached=4 if number == 0 else 6))

    async with serving() as served:
        status, text = await answered(served, hello(n=3), script=script, **{"X-Request-Id": "r"})
    assert status == 200
    answer = ChatCompletion.model_validate_json(text, strict=True)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, "a0!"), (1, "a1!"), (2, "a2!")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 6, 12)
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_the_sequences_of_a_request_have_ids_that_no_other_request_can_have():
    async with serving() as served:
        asking = [
            asyncio.ensure_future(answered(served, hello(n=n), script=lambda _: None, **{"X-Request-Id": name}))
            for name, n in (("r", 2), ("r-1", 1), ("r", 2))
        ]
        await until(lambda: len(served.engine.live) == 5)
        assert set(served.engine.live) == {"r", "r#1", "r-1", "r-2", "r-2#1"}
        for request in list(served.engine.live.values()):
            served.engine.put(request.request, last("x"))
        assert [status for status, _ in await asyncio.gather(*asking)] == [200, 200, 200]


async def test_streamed_choices_come_mixed_with_their_index_and_the_usage_comes_once():
    body = hello(n=2, stream=True, stream_options={"include_usage": True})
    async with serving() as served:
        reader, writer = await post(served.port, CHAT, body)
        requests = [await within(served.engine.arrivals.get()) for _ in range(2)]
        data = b""
        for place, output in (
            (1, piece("one")),
            (0, piece("zero")),
            (1, last("end1")),
            (0, piece("more")),
            (0, last("end0")),
        ):
            served.engine.put(requests[place], output)
            data += await reader.readuntil(output.text.encode() + b'"')
        data += await reader.readuntil(b"[DONE]\n\n")
        writer.close()
    lines = data.decode().replace("\r\n", "\n").split("\n")
    seen = events("\n\n".join(line for line in lines if line.startswith("data:")))
    assert seen.pop() == "[DONE]"
    usage = seen.pop()
    for event in (*seen, usage):
        ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert all(event["usage"] is None and "mlxd" not in event for event in seen)
    steps = [
        (step["index"], step["delta"].get("content"), step["finish_reason"])
        for event in seen
        for step in event["choices"]
    ]
    assert steps == [
        (1, "", None), (1, "one", None), (0, "", None), (0, "zero", None), (1, "end1", None), (1, None, "stop"),
        (0, "more", None), (0, "end0", None), (0, None, "stop"),
    ]  # fmt: skip


async def test_without_usage_the_vendor_object_is_on_the_last_chunk_alone():
    def script(requests):
        for request in requests:
            served.engine.put(request, last(request.id))

    async with serving() as served:
        _, text = await answered(served, hello(n=2, stream=True), script=script)
    seen = events(text)
    assert seen.pop() == "[DONE]"
    assert ["mlxd" in event for event in seen] == [False] * (len(seen) - 1) + [True]


async def test_the_openai_client_reads_several_streamed_choices():
    async with serving() as served, client_of(served) as client:

        async def feed():
            requests = [await served.engine.arrivals.get() for _ in range(3)]
            for number, request in enumerate(requests):
                served.engine.put(request, piece(f"{number}a"))
                served.engine.put(request, last(f"{number}b"))

        feeding = asyncio.ensure_future(feed())
        stream = await client.chat.completions.create(**HELLO, n=3, stream=True)
        texts = {0: "", 1: "", 2: ""}
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        await feeding
    assert texts == {0: "0a0b", 1: "1a1b", 2: "2a2b"}


async def test_several_prompts_have_choices_in_their_order_and_count_once_each():
    def script(requests):
        assert [request.prompt for request in requests] == [(97,), (97,), (98, 99), (98, 99)]
        for number, request in enumerate(requests):
            served.engine.put(request, counted(f"t{number}", prompt=len(request.prompt), cached=0))

    body = {"model": "m", "prompt": ["a", "bc"], "n": 2}
    async with serving() as served:
        status, text = await answered(served, body, TEXT, script=script)
    assert status == 200
    answer = Completion.model_validate_json(text, strict=True)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "t0"), (1, "t1"), (2, "t2"), (3, "t3")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_each_prompt_before_its_answers(stream):
    def script(requests):
        for number, request in enumerate(requests):
            served.engine.put(request, piece(f" {number}"))
            served.engine.put(request, last("."))

    body = {"model": "m", "prompt": ["ab", "c"], "n": 2, "echo": True, "stream": stream}
    async with serving() as served:
        _, text = await answered(served, body, TEXT, script=script)
    texts = [""] * 4
    for event in events(text)[:-1] if stream else [json.loads(text)]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["ab 0.", "ab 1.", "c 2.", "c 3."]


def test_each_choice_has_a_seed_of_its_own_and_the_first_has_the_requests():
    params = [for_choice(SamplingParams(seed=7), number) for number in range(128)]
    assert params[0].seed == 7
    assert len({each.seed for each in params}) == 128
    assert all(0 <= each.seed < 2**64 for each in params)
    assert for_choice(SamplingParams(seed=7), 3) == params[3]
    assert for_choice(SamplingParams(), 3).seed is None


async def test_the_seeds_of_choices_begin_anew_with_each_prompt():
    seeds = []

    def script(requests):
        seeds.extend(request.sampling.seed for request in requests)
        for request in requests:
            served.engine.put(request, last("x"))

    async with serving() as served:
        await answered(served, {"model": "m", "prompt": ["a", "b"], "n": 2, "seed": 5}, TEXT, script=script)
    assert seeds[:2] == seeds[2:]
    assert seeds[0] == 5
    assert seeds[1] != 5


@pytest.mark.parametrize("stream", [False, True])
async def test_one_choice_that_fails_fails_the_request_and_ends_the_others(stream):
    error = engine_errors.PrefillMemoryExceeded("x", 5, 4)
    async with serving() as served:
        status, text = await answered(
            served, hello(n=3, stream=stream), script=lambda requests: served.engine.put(requests[1], error)
        )
        assert json.loads(text)["error"]["code"] == "prefill_memory_exceeded"
        assert status == 507
        left = [await within(served.engine.departures.get()) for _ in range(3)]
        assert sorted(finished for _, finished in left) == [False, False, True]
        assert served.engine.live == {}


async def test_a_choice_that_fails_in_mid_stream_ends_it_with_one_error():
    async with serving() as served:
        reader, writer = await post(served.port, CHAT, hello(n=2, stream=True))
        requests = [await within(served.engine.arrivals.get()) for _ in range(2)]
        served.engine.put(requests[0], piece("Hel"))
        await reader.readuntil(b"Hel")
        for request in requests:
            served.engine.put(request, engine_errors.FootprintExceeded(2, 1, "x"))
        rest = (await within(reader.readuntil(b"0\r\n\r\n"))).decode()
        writer.close()
    assert rest.count("memory_ceiling") == 1
    assert "[DONE]" not in rest


async def test_all_choices_are_admitted_or_none():
    async with serving() as served:
        admit = served.engine.generate

        def full(request):
            if len(served.engine.live) == 2:
                raise engine_errors.EngineQueueFull(2, 2)
            return admit(request)

        served.engine.generate = full
        status, error = await refusal(served, hello(n=3))
        assert (status, error["code"]) == (429, "queue_full")
        assert served.engine.live == {}


async def test_more_choices_than_the_engine_ever_takes_are_refused_for_good():
    async with serving() as served:
        served.engine.config = replace(served.engine.config, max_running=1, max_waiting=2)
        status, error = await refusal(served, hello(n=4))
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "n")
        status, error = await refusal(served, {"model": "m", "prompt": ["a"] * 4}, TEXT)
        assert (status, error["param"]) == (400, "prompt")
        assert served.engine.arrivals.empty()


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (["a", ""], "invalid_request", "prompt[1]"),
        ([[1], [1000]], "invalid_request", "prompt[1]"),
        (["a", "x" * 100], "context_length_exceeded", "prompt"),
    ],
)
async def test_one_bad_prompt_refuses_all_of_them(prompt, code, param):
    async with serving() as served:
        status, error = await refusal(served, {"model": "m", "prompt": prompt}, TEXT)
        assert (status, error["code"], error["param"]) == (400, code, param)
        assert served.engine.live == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_all_its_choices(stream):
    async with serving() as served:
        _, writer = await post(served.port, CHAT, hello(n=3, stream=stream))
        requests = [await within(served.engine.arrivals.get()) for _ in range(3)]
        served.engine.put(requests[1], last("done"))
        writer.transport.abort()
        left = [await within(served.engine.departures.get()) for _ in range(3)]
        assert sorted(left) == sorted((request.id, request is requests[1]) for request in requests)
        assert served.registry.leases == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancel_ends_all_choices_and_keeps_what_each_has(stream):
    def script(requests):
        served.engine.put(requests[0], last("done", FinishReason.LENGTH))
        served.engine.put(requests[1], piece("half"))
        assert served.services.running.cancel("r")

    async with serving() as served:
        _, text = await answered(served, hello(n=3, stream=stream), script=script, **{"X-Request-Id": "r"})
        assert not served.services.running.cancel("r")
    texts, reasons = [""] * 3, [None] * 3
    seen = events(text)[:-1] if stream else [json.loads(text)]
    for event in seen:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta" if stream else "message"].get("content") or ""
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == ["done", "half", ""]
    assert reasons == ["length", "stop", "stop"]
    assert seen[-1]["mlxd"]["cancelled"] is True


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancel_before_the_engine_answers_every_choice(stream):
    async with serving() as served, aiohttp.ClientSession() as http:
        served.registry.open.clear()
        body = {"model": "m", "prompt": ["a", "b"], "n": 2, "stream": stream}
        asking = asyncio.ensure_future(http.post(served.url + TEXT, json=body, headers={"X-Request-Id": "r"}))
        await served.registry.waits.get()
        assert served.services.running.cancel("r")
        answer = await asking
        text = await answer.text()
    ends = [choice for event in (events(text)[:-1] if stream else [json.loads(text)]) for choice in event["choices"]]
    assert [(choice["index"], choice["finish_reason"]) for choice in ends] == [(n, "stop") for n in range(4)]


async def test_a_request_of_several_choices_is_one_live_request():
    def script(requests):
        [view] = served.services.running.views(())
        assert (view.id, view.state, view.prompt_tokens, view.completion_tokens) == ("r", "decoding", 6, 4)
        assert view.decode_tps == 20.0
        for request in requests:
            served.engine.put(request, last("x"))

    async with serving() as served:
        status, _ = await answered(served, hello(n=2), script=script, **{"X-Request-Id": "r"})
    assert status == 200


async def test_choices_leave_no_task_behind():
    async with serving() as served:
        before = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
        reader, writer = await post(served.port, CHAT, hello(n=3, stream=True))
        requests = [await within(served.engine.arrivals.get()) for _ in range(3)]
        served.engine.put(requests[2], piece("Hel"))
        await reader.readuntil(b"Hel")
        writer.transport.abort()
        await until(lambda: not served.engine.live and len(served.services.running) == 0)
        await until(lambda: {task.get_coro().__qualname__ for task in asyncio.all_tasks()} <= before)


def test_what_a_request_says_of_its_answer_reaches_the_engine():
    asked = {
        "min_tokens": 3, "max_tokens": 9, "ignore_eos": True, "xtc_probability": 0.5, "xtc_threshold": 0.2,
        "logprobs": True, "top_logprobs": 4,
    }  # fmt: skip
    options = parse_chat({"messages": HELLO["messages"], **asked}).options
    params = sampling_params(Settings(), Resolved("m", None), options, 50)
    assert (params.min_tokens, params.max_tokens, params.ignore_eos) == (3, 9, True)
    assert (params.xtc_probability, params.xtc_threshold, params.logprobs) == (0.5, 0.2, 4)


async def test_min_tokens_above_what_the_answer_may_have_is_refused():
    async with serving() as served:
        status, error = await refusal(served, hello(min_tokens=95))
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "min_tokens")
        assert served.engine.arrivals.empty()
