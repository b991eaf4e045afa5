"""Log-probabilities: OpenAI's two forms, whole and streamed."""

import asyncio
import json

import pytest
from api_calls import CHAT, TEXT, ask, client_of, hello
from api_fakes import HELLO, VOCABULARY, events, serving
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mlxd.daemon.api.openai.logprobs import TextLogprobsWriter, token_text
from mlxd.engines.types import FinishReason, RequestOutput, TokenLogprobs, Usage

PART = VOCABULARY - 1  # two bytes of a character of three
H, J, K = (ord(letter) for letter in "hjk")
FIRST = TokenLogprobs(H, -0.5, ((H, -0.5), (J, -1.5)))
SECOND = TokenLogprobs(PART, float("-inf"), ((K, -0.25), (J, float("-inf"))))


def output(text, *logprobs, finish=None):
    return RequestOutput(text, Usage(6, 3), finish_reason=finish, logprobs=logprobs)


SCRIPT = output("h", FIRST), output("", SECOND, finish=FinishReason.STOP)
ASKED = {"logprobs": True, "top_logprobs": 2}
ENTRIES = [
    {
        "token": "h",
        "logprob": -0.5,
        "bytes": [104],
        "top_logprobs": [
            {"token": "h", "logprob": -0.5, "bytes": [104]},
            {"token": "j", "logprob": -1.5, "bytes": [106]},
        ],
    },
    {
        "token": "bytes:\\xe2\\x82",
        "logprob": -9999.0,
        "bytes": [0xE2, 0x82],
        "top_logprobs": [
            {"token": "k", "logprob": -0.25, "bytes": [107]},
            {"token": "j", "logprob": -9999.0, "bytes": [106]},
        ],
    },
]
LISTS = {
    "tokens": ["h", "bytes:\\xe2\\x82"],
    "token_logprobs": [-0.5, -9999.0],
    "top_logprobs": [{"h": -0.5, "j": -1.5}, {"k": -0.25, "j": -9999.0, "bytes:\\xe2\\x82": -9999.0}],
    "text_offset": [0, 1],
}


async def test_a_chat_has_an_entry_for_each_token():
    async with serving() as served:
        _, text = await ask(served, hello(**ASKED), CHAT, *SCRIPT)
    ChatCompletion.model_validate_json(text, strict=True)
    assert json.loads(text)["choices"][0]["logprobs"] == {"content": ENTRIES, "refusal": None}


async def test_a_streamed_chat_has_the_same_entries_each_once():
    async with serving() as served:
        _, text = await ask(served, hello(stream=True, **ASKED), CHAT, *SCRIPT)
    seen = events(text)[:-1]
    for event in seen:
        ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
    reported = [event["choices"][0]["logprobs"] for event in seen]
    assert [entry for each in reported if each is not None for entry in each["content"]] == ENTRIES


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion_has_parallel_lists(stream):
    body = {"model": "m", "prompt": "hello!", "logprobs": 2, "stream": stream}
    async with serving() as served:
        _, text = await ask(served, body, TEXT, *SCRIPT)
    joined = {name: [] for name in LISTS}
    for event in events(text)[:-1] if stream else [json.loads(text)]:
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == LISTS
    if not stream:
        Completion.model_validate_json(text, strict=True)


@pytest.mark.parametrize(
    ("body", "path", "wanted"),
    [
        (hello(), CHAT, None),
        (hello(logprobs=False), CHAT, None),
        (hello(logprobs=False, top_logprobs=0), CHAT, None),
        (hello(logprobs=None, top_logprobs=None), CHAT, None),
        (hello(logprobs=True), CHAT, 0),
        (hello(logprobs=True, top_logprobs=20), CHAT, 20),
        ({"model": "m", "prompt": "x"}, TEXT, None),
        ({"model": "m", "prompt": "x", "logprobs": None}, TEXT, None),
        ({"model": "m", "prompt": "x", "logprobs": 0}, TEXT, 0),
        ({"model": "m", "prompt": "x", "logprobs": 5}, TEXT, 5),
    ],
)
async def test_the_engine_reports_what_was_asked_for_and_nothing_else(body, path, wanted):
    async with serving() as served:
        asking = asyncio.ensure_future(ask(served, body, path))
        request = await served.engine.arrivals.get()
        assert request.sampling.logprobs == wanted
        served.engine.put(request, output("", finish=FinishReason.STOP))
        choice = json.loads((await asking)[1])["choices"][0]
    empty = {"content": [], "refusal": None} if path == CHAT else {name: [] for name in LISTS}
    assert choice["logprobs"] == (None if wanted is None else empty)


async def test_the_openai_client_reads_logprobs_on_both_paths():
    async with serving() as served, client_of(served) as client:

        async def feed():
            request = await served.engine.arrivals.get()
            for each in SCRIPT:
                served.engine.put(request, each)

        feeding = asyncio.ensure_future(feed())
        chat = await client.chat.completions.create(**HELLO, **ASKED)
        await feeding
        feeding = asyncio.ensure_future(feed())
        stream = await client.completions.create(model="m", prompt="x", logprobs=2, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
        await feeding
    assert [entry.token for entry in chat.choices[0].logprobs.content] == LISTS["tokens"]
    offsets = [offset for choice in chunks if choice.logprobs is not None for offset in choice.logprobs.text_offset]
    assert offsets == [0, 1]


def test_offsets_count_characters_across_pieces():
    data = {1: b"a", 2: "é€".encode(), 3: "€".encode()[:1], 4: "€".encode()[1:], 5: b"b"}
    writer = TextLogprobsWriter(data.__getitem__)
    pieces = [writer.write([TokenLogprobs(token, -1.0)]) for token in (1, 2, 3, 4, 5)]
    assert [offset for piece in pieces for offset in piece.text_offset] == [0, 1, 3, 3, 4]


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", ""), (b" Par", " Par"), ("€".encode(), "€"), (b"\xff", "bytes:\\xff"), (b"a\x80", "bytes:\\x61\\x80")],
)
def test_a_token_is_text_or_its_bytes(data, text):
    assert token_text(data) == text


def test_what_is_no_number_is_the_least():
    written = TextLogprobsWriter(lambda _: b"x").write([TokenLogprobs(1, float("nan")), TokenLogprobs(1, -1e9)])
    assert written.token_logprobs == [-9999.0, -9999.0]
