"""One model behind every facade: the same greedy request gives the same text and the same token counts."""

from __future__ import annotations

import aiohttp
import pytest
from facades import FACADES, Said, events, question
from test_api_daemon import running
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model

TOOL = {
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = ["<tool_call>", '{"name": "weather"', ', "arguments": {"city":', ' "Köln"}}', "</tool_call>"]
ANSWER = ["It is", " Köln", " they mean.", "</think>", "I", " look.", *CALL]

ASKED = {
    "random text that never ends": ("tiny", question("Tell me a story.", system="Be brief.", max_tokens=24)),
    "a context that is all of the prompt's": ("tiny", question("word " * 100, max_tokens=1)),
    "reasoning and text": ("thinker", question("Where?")),
    "reasoning, text and a call": ("thinker", question("How is the weather?", system="Use tools.", tool=TOOL)),
    "an answer cut off in its reasoning": ("thinker", question("Where?", max_tokens=2)),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("models")
    build_reciting_model(folder / "thinker", ANSWER, template=TOOL_TEMPLATE, added=ANSWER_MARKERS)
    (folder / "tiny").symlink_to(tiny_model)
    return folder


async def asked(http: aiohttp.ClientSession, name: str, model: str, what: dict, *, stream: bool) -> Said:
    """What one facade says."""
    facade = FACADES[name]
    body = {"model": model, "stream": stream, **facade.body(what)}
    if not stream:
        body.pop("stream_options", None)
    async with http.post(facade.path, json=body) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    sent = list(events(text))
    return facade.streamed(sent) if stream else facade.whole(sent[0])


@pytest.mark.parametrize(("model", "what"), ASKED.values(), ids=list(ASKED))
async def test_every_facade_gives_the_same_answer(folders, model, what):
    async with running(folders) as served, aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as http:
        said = {
            (name, stream): await asked(http, name, model, what, stream=stream)
            for name in FACADES
            for stream in (False, True)
        }
    expected = said["openai", False]
    assert expected.text or expected.reasoning
    assert {key: each for key, each in said.items() if each != expected} == {}
    assert bool(expected.calls) == bool(what["tool"])
    assert expected.prompt_tokens > 1
    assert expected.ended_by == ("length" if expected.completion_tokens == what["max_tokens"] else expected.ended_by)


async def test_a_raw_prompt_goes_on_the_same_over_every_facade_that_takes_one(folders):
    prompt = "Once upon a time"
    bodies = {
        "/v1/completions": {"prompt": prompt, "max_tokens": 12, "temperature": 0},
        "/api/generate": {"prompt": prompt, "raw": True, "options": {"num_predict": 12, "temperature": 0}},
    }
    async with running(folders) as served, aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as http:
        answers = []
        for path, body in bodies.items():
            async with http.post(path, json={"model": "tiny", "stream": False, **body}) as answer:
                assert answer.status == 200
                answers.append(await answer.json())
        async with http.post("/v1/tokenize", json={"model": "tiny", "prompt": prompt}) as answer:
            tokens = (await answer.json())["count"]
    completion, generated = answers
    assert completion["choices"][0]["text"] == generated["response"]
    assert generated["response"]
    used = completion["usage"]
    assert (used["prompt_tokens"], used["completion_tokens"]) == (
        generated["prompt_eval_count"],
        generated["eval_count"],
    )
    assert used["prompt_tokens"] == tokens


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/messages/count_tokens", "input_tokens", {}),
        ("/v1/responses/input_tokens", "input_tokens", {"input": "Where?"}),
        ("/v1/tokenize", "count", {}),
    ],
)
async def test_what_is_counted_ahead_is_what_a_chat_takes(folders, path, field, body):
    chat = {"model": "thinker", "messages": [{"role": "user", "content": "Where?"}]}
    counted = {"model": "thinker", **(body or {"messages": chat["messages"]})}
    async with running(folders) as served, aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as http:
        async with http.post("/v1/chat/completions", json=chat) as answer:
            used = (await answer.json())["usage"]["prompt_tokens"]
        async with http.post(path, json=counted) as answer:
            assert (await answer.json())[field] == used
