"""POST /v1/tokenize over the real registry and real tokenisers: the same tokens as an answer would have."""

import json

import aiohttp
import pytest
import pytest_asyncio
from answer_models import WEATHER
from api_fakes import listening
from tiny_models import ANSWER_MARKERS, BOS, TOOL_TEMPLATE, build_reciting_model
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from mlxd.daemon.api import prompt_length
from mlxd.daemon.app import Daemon
from mlxd.daemon.settings import ModelSettings, ModelsSettings, PresetSettings, ServerSettings, Settings
from mlxd.memory.probe import SystemProbe

pytestmark = pytest.mark.asyncio(loop_scope="module")

HI = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
CALLED = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "Sunny."},
]
TOKENIZE = "/v1/tokenize"


class Running:
    def __init__(self, daemon, http):
        self.daemon = daemon
        self._http = http

    async def ask(self, body, path=TOKENIZE):
        async with self._http.post(path, json=body) as answer:
            return answer.status, json.loads(await answer.read())

    async def tokens(self, **fields):
        status, answer = await self.ask({"model": "speaker", **fields})
        assert status == 200, answer
        assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 512)
        return answer

    async def refused(self, **fields):
        """The field that a refusal names."""
        status, answer = await self.ask({"model": "speaker", **fields})
        assert (status, answer["error"]["code"]) == (400, "invalid_request"), answer
        return answer["error"]["param"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("models")
    build_reciting_model(
        folder / "speaker",
        ["Yes", "."],
        template=TOOL_TEMPLATE,
        added=ANSWER_MARKERS,
        max_position_embeddings=512,
    )
    tokenizer = Tokenizer.from_file(str(folder / "speaker" / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", BOS)])
    tokenizer.save(str(folder / "speaker" / "tokenizer.json"))
    (folder / "plain").symlink_to(tiny_model)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(folder, tmp_path_factory):
    settings = Settings(
        models=ModelsSettings(dirs=(folder,)),
        model=(
            ModelSettings(
                "speaker", aliases=("s",), presets=(PresetSettings("pensive", template={"enable_thinking": True}),)
            ),
        ),
        server=ServerSettings(drain_timeout=5, state_dir=tmp_path_factory.mktemp("state")),
    )
    daemon = Daemon(settings, SystemProbe(), hf_cache=None)
    daemon.start()
    async with (
        listening(daemon.application()) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
    ):
        yield Running(daemon, http)
        assert {model.leases for model in daemon.registry.models()} == {0}
        assert await daemon.close()


async def test_the_tokens_of_a_prompt_are_those_that_a_completion_goes_on_from(served):
    text = "Hello, wörld <tool_call> 🙂"
    told = await served.tokens(prompt=text)
    _, completion = await served.ask({"model": "speaker", "prompt": text, "max_tokens": 4}, "/v1/completions")
    assert completion["usage"]["prompt_tokens"] == told["count"]
    body = {"model": "speaker", "prompt": told["tokens"], "max_tokens": 4}
    _, again = await served.ask(body, "/v1/completions")
    assert again["choices"] == completion["choices"]
    assert again["usage"]["prompt_tokens"] == told["count"]


async def test_the_texts_of_tokens_are_the_prompt_and_bytes_where_a_character_is_cut(served):
    told = await served.tokens(prompt="abc <tool_call>", return_token_strs=True, add_special_tokens=False)
    assert "".join(told["token_strs"]) == "abc <tool_call>"
    assert "<tool_call>" in told["token_strs"]
    cut = (await served.tokens(prompt="🙂", return_token_strs=True, add_special_tokens=False))["token_strs"]
    assert "".join(cut) == r"bytes:\xf0bytes:\x9fbytes:\x99bytes:\x82"
    assert (await served.tokens(prompt="abc"))["token_strs"] is None


async def test_special_tokens_are_left_out_on_demand(served):
    plain = (await served.tokens(prompt="hi", add_special_tokens=False))["tokens"]
    for fields in ({}, {"add_special_tokens": True}):
        assert (await served.tokens(prompt="hi", **fields))["tokens"] == [BOS, *plain]
    assert (await served.tokens(prompt="", add_special_tokens=False))["tokens"] == []
    chats = [await served.tokens(messages=HI, **fields) for fields in ({}, {"add_special_tokens": False})]
    assert chats[0] == chats[1]
    assert BOS not in chats[0]["tokens"]


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"tools": [WEATHER]},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"messages": CALLED, "tools": [WEATHER], "model": "s"},
        {"model": "pensive"},
    ],
    ids=["plain", "tools", "variables", "history", "preset"],
)
async def test_the_tokens_of_a_chat_are_as_many_as_its_answer_counts(served, extra):
    fields = {"messages": HI, **extra}
    told = await served.tokens(**fields)
    status, answer = await served.ask({"model": "speaker", **fields, "max_tokens": 1}, "/v1/chat/completions")
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] == told["count"]


async def test_a_chat_can_be_counted_without_the_beginning_of_an_answer(served):
    whole = await served.tokens(messages=HI, return_token_strs=True)
    history = await served.tokens(messages=HI, return_token_strs=True, add_generation_prompt=False)
    assert whole["tokens"][: history["count"]] == history["tokens"]
    assert "".join(whole["token_strs"][history["count"] :]) == "<|im_start|>assistant\n<think>\n"
    assert await served.tokens(messages=HI, return_token_strs=True, add_generation_prompt=True) == whole


async def test_nothing_is_generated_and_nothing_is_left_behind(served):
    await served.tokens(prompt="hi")
    before = served.daemon.registry.model("speaker").engine
    await served.tokens(prompt="hi")
    model = served.daemon.registry.model("speaker")
    assert (model.engine.prompt_tokens, model.engine.completion_tokens) == (
        before.prompt_tokens,
        before.completion_tokens,
    )
    assert (model.leases, model.engine.running) == (0, 0)


async def test_null_is_the_default_of_every_field(served):
    nothing = dict.fromkeys(("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "chat_template"))
    nothing |= dict.fromkeys(("add_special_tokens", "return_token_strs"))
    assert await served.tokens(prompt="hi", **nothing) == await served.tokens(prompt="hi")


async def test_a_text_that_is_far_too_long_is_refused_before_all_of_it_is_read(served, monkeypatch):
    monkeypatch.setattr(prompt_length, "LONG_TEXT", 1000)
    body = {"model": "speaker", "prompt": "a b " * 500, "add_special_tokens": False}
    status, answer = await served.ask(body)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", "prompt")


async def test_a_prompt_longer_than_the_context_is_counted(served):
    assert (await served.tokens(prompt="x" * 2000, add_special_tokens=False))["count"] > 512


async def test_a_model_without_tools_refuses_them(served):
    status, answer = await served.ask({"model": "plain", "messages": HI, "tools": [WEATHER]})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "unsupported_capability", "tools")


async def test_an_unknown_model_is_not_found(served):
    for name in ("speakr", "../speaker", "/etc/passwd", "speaker/", "a\x00b"):
        status, answer = await served.ask({"model": name, "prompt": "hi"})
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")


WRONG = {
    "model": [1, True, [], {}],
    "prompt": [1, True, {}, ["a"], [1, 2], [[1]]],
    "messages": [[], "hi", {}, [1], [None], [{"role": "user"}], [{"role": "wizard", "content": "x"}]],
    "tools": [{}, "x", [1], [{"type": "x"}], [{"type": "function"}]],
    "chat_template_kwargs": [1, "x", [], {"messages": []}, {"add_generation_prompt": False}, {"tokenize": True}],
    "add_generation_prompt": [1, "true", []],
    "add_special_tokens": [0, "false", {}],
    "return_token_strs": [1, "yes"],
    "chat_template": ["{{ messages }}", "", 1],
    "continue_final_message": [True, 1, "no"],
    "mm_processor_kwargs": [{"a": 1}, 1],
    "temperature": [0, 1],
    "stream": [True],
    "max_tokens": [1],
    "promt": ["hi"],
}


@pytest.mark.parametrize("field", WRONG)
async def test_what_cannot_be_served_is_refused_with_its_field(served, field):
    input_of = {"prompt": {}, "messages": {}, "model": {"prompt": "hi"}}.get(field, {"messages": HI})
    before = served.daemon.registry.model("speaker").last_used_at
    for value in WRONG[field]:
        param = await served.refused(**input_of, **{field: value})
        assert param.partition(".")[0].partition("[")[0] == field, (value, param)
    assert served.daemon.registry.model("speaker").last_used_at == before


async def test_a_prompt_and_messages_do_not_go_together(served):
    assert await served.refused() == "prompt"
    assert await served.refused(prompt=None, messages=None) == "prompt"
    assert await served.refused(prompt="hi", messages=HI) == "messages"
    assert await served.refused(prompt="hi", tools=[WEATHER]) == "tools"
    assert await served.refused(prompt="hi", chat_template_kwargs={}) == "chat_template_kwargs"
    assert await served.refused(prompt="hi", add_generation_prompt=True) == "add_generation_prompt"
    assert await served.refused(messages=HI, add_special_tokens=True) == "add_special_tokens"
