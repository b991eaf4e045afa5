"""Anthropic's own client against a real daemon: answers, tools, thinking, counts, and a long session."""

import asyncio
import contextlib
import io
import re

import anthropic
import pytest
from anthropic_calls import CLOCK, USER, WEATHER
from daemon_process import Api, daemon
from doc_pages import blocks, page
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model, place_models

# What a model that reasons and calls tools is asked with, and what it has said before, thoughts included.
SHOWN = "{{ m['content'] or '' }}"
THOUGHT = "{% if m['reasoning_content'] %}<think>\n{{ m['reasoning_content'] }}\n</think>\n\n{% endif %}"
TEMPLATE = TOOL_TEMPLATE.replace(SHOWN, THOUGHT + SHOWN)
THINKS = ["I", " think", ".", "\n", "</think>", "\n\n"]
SAYS = ["Let me", " see", "."]
CALLS = [
    "<tool_call>", '{"name": "weather",', ' "arguments": {"city": "K', "ö".encode()[:1], "ö".encode()[1:], 'ln"', "}}",
    "</tool_call>", "\n", "<tool_call>", '{"name": "clock", "arguments": {}}', "</tool_call>",
]  # fmt: skip
CAPITAL = [" The", " capital", " is", " Paris", "."]
SPOKEN = "".join(CAPITAL).strip()
CONFIG = """
[[model]]
name = "speaker"
aliases = ["claude-small"]
[[model]]
name = "caller"
aliases = ["claude-large"]
"""
LIMIT = re.compile(r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anthropic")
    options = {"template": TEMPLATE, "added": ANSWER_MARKERS}
    built = {
        "speaker": build_reciting_model(folder / "speaker", CAPITAL),
        "caller": build_reciting_model(folder / "caller", [*THINKS, *SAYS, *CALLS], **options),
    }
    with daemon(folder / "d", place_models(folder / "models", built), CONFIG) as running:
        yield running


@pytest.fixture
async def client(served):
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="any", max_retries=0) as made:
        yield made


def asks(model, **fields):
    """What the client is asked for; it does not know the temperature any more."""
    return {"model": model, "max_tokens": 64, "messages": [USER], "extra_body": {"temperature": 0}, **fields}


async def streamed(client, **body):
    """The message that a stream makes, and the types of its events."""
    async with client.messages.stream(**body) as stream:
        kinds = {event.type async for event in stream}
        return await stream.get_final_message(), kinds


async def both(client, **body):
    """The same answer whole and streamed."""
    whole = await client.messages.create(**body)
    message, _ = await streamed(client, **body)
    assert [plain(block) for block in message.content] == [plain(block) for block in whole.content]
    assert (message.stop_reason, message.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert message.usage.output_tokens == whole.usage.output_tokens
    return whole


def plain(block):
    return {name: value for name, value in block.to_dict().items() if name != "id"}


def prompt_of(message):
    return message.usage.input_tokens + message.usage.cache_read_input_tokens


async def test_an_answer_and_a_count_of_its_prompt(client):
    message = await both(client, **asks("speaker", system="Be brief."))
    assert [block.text for block in message.content] == [SPOKEN]
    assert message.stop_reason == "end_turn"
    counted = await client.messages.count_tokens(model="speaker", messages=[USER], system="Be brief.")
    assert counted.input_tokens == prompt_of(message)


@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({"stop_sequences": ["!", " Paris"]}, "The capital is", "stop_sequence", " Paris"),
        ({"max_tokens": 2}, "The capital", "max_tokens", None),
    ],
)
async def test_what_ended_an_answer_is_told(client, fields, text, reason, sequence):
    message = await both(client, **asks("speaker", **fields))
    assert message.content[0].text == text
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


async def test_an_answer_goes_on_from_its_beginning(client, served):
    history = [USER, {"role": "assistant", "content": "It is said: The"}]
    message = await both(client, **asks("speaker", messages=history))
    # this model begins anew after every token but its own; that it goes on shows in the first space
    assert message.content[0].text == "".join(CAPITAL)
    counted = await client.messages.count_tokens(model="speaker", messages=history)
    assert counted.input_tokens == prompt_of(message)
    async with Api(served.url) as api:
        body = {
            "model": "speaker",
            "prompt": "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nIt is said: The",
        }
        _, raw = await api.call("POST", "/v1/completions", {**body, "max_tokens": 1})
    assert raw["usage"]["prompt_tokens"] == counted.input_tokens


async def test_thinking_calls_and_results_go_round(client):
    body = asks("caller", tools=[WEATHER, CLOCK], thinking={"type": "enabled", "budget_tokens": 1024})
    message, kinds = await streamed(client, **body)
    assert kinds >= {
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop", "thinking", "signature", "text", "input_json",
    }  # fmt: skip
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (message.content[0].thinking, message.content[1].text) == ("I think.", "Let me see.")
    assert [(block.name, block.input) for block in message.content[2:]] == [
        ("weather", {"city": "Köln"}),
        ("clock", {}),
    ]
    assert message.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "17"}], "is_error": False}
        for block in message.content[:1:-1]
    ]
    history = [USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    again = await client.messages.create(**{**body, "messages": history})
    assert again.usage.cache_read_input_tokens >= prompt_of(message)
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(**{**body, "messages": [*history[:2], USER]})
    assert caught.value.body["error"]["param"] == "messages[1].content[2]"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_clients_own_runner_of_tools_goes_round(client, stream):
    asked = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Tells it."""
        asked.append(city)
        return "17"

    @anthropic.beta_async_tool
    async def clock() -> str:
        """Tells it."""
        asked.append("clock")
        return "12"

    turns = client.beta.messages.tool_runner(**asks("caller", tools=[weather, clock]), stream=stream, max_iterations=2)
    reasons = [(await turn.get_final_message() if stream else turn).stop_reason async for turn in turns]
    assert reasons == ["tool_use", "tool_use"]
    assert asked[:2] == ["Köln", "clock"]


async def test_one_call_is_made_where_one_is_asked_for(client):
    for choice in (
        {"type": "auto", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "weather"},
    ):
        message = await both(client, **asks("caller", tools=[WEATHER, CLOCK], tool_choice=choice))
        assert [block.name for block in message.content if block.type == "tool_use"] == ["weather"]
    none = await both(client, **asks("caller", tools=[WEATHER], tool_choice={"type": "none"}))
    assert [block.type for block in none.content] == ["thinking", "text"]


async def test_a_model_that_does_not_think_passes_over_thinking(client):
    message = await both(client, **asks("speaker", thinking={"type": "adaptive"}))
    assert [block.type for block in message.content] == ["text"]


async def test_an_answer_has_the_form_that_is_asked_for(client):
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = await both(client, **asks("speaker", output_config=config))
    assert re.fullmatch(r'\{\s*"a"\s*:\s*7\s*\}', message.content[0].text)


async def test_what_a_model_cannot_do_is_refused(client):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    for fields in ({"tools": [WEATHER]}, {"messages": [{"role": "user", "content": [image]}]}):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(**asks("speaker", **fields))
        assert caught.value.body["error"]["code"] == "unsupported_capability"
        assert caught.value.body["error"]["param"]


async def test_the_same_question_has_the_same_answer_and_counts_in_both_apis(client, served):
    message = await client.messages.create(**asks("caller", system="Be brief."))
    async with Api(served.url) as api:
        messages = [{"role": "system", "content": "Be brief."}, USER]
        body = {"model": "caller", "messages": messages, "max_tokens": 64, "temperature": 0}
        _, answer = await api.call("POST", "/v1/chat/completions", body)
    usage, said = answer["usage"], answer["choices"][0]["message"]
    assert (prompt_of(message), message.usage.output_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert [message.content[0].thinking, message.content[1].text] == [said["reasoning_content"], said["content"]]


class Session:
    """What Claude Code sends: one long prompt that grows, each time with another billing line, and small requests."""

    def __init__(self, client):
        self._client = client
        self.max_tokens = 32000
        self._number = 0
        self.history = []

    def body(self):
        self._number += 1
        kept = {"cache_control": {"type": "ephemeral"}}
        tools = [{**WEATHER, "name": f"tool_{number}", "description": "Does a thing. " * 20} for number in range(8)]
        return {
            "model": "claude-large",
            "messages": self.history,
            "system": [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={self._number:05x};"},
                {"type": "text", "text": "You are Claude Code.", **kept},
                {"type": "text", "text": "You help with software engineering tasks. " * 60, **kept},
            ],
            "tools": [WEATHER, CLOCK, *tools[:-1], {**tools[-1], **kept}],
            "thinking": {"type": "adaptive"},
        }

    async def turn(self, *content):
        """Ask, with as many tokens as there is room for; the answer and what was counted before."""
        self.history.append({"role": "user", "content": list(content)})
        counted = await self._client.beta.messages.count_tokens(**self.body(), betas=["token-counting-2024-11-01"])
        while True:
            try:
                message = await self._ask()
            except anthropic.BadRequestError as error:
                prompt, asked, limit = map(int, LIMIT.search(str(error)).groups())
                assert (prompt, asked) == (counted.input_tokens, self.max_tokens)
                self.max_tokens = limit - prompt
            else:
                self.history.append({"role": "assistant", "content": message.content})
                return message, counted.input_tokens

    async def _ask(self):
        async with self._client.beta.messages.stream(
            **self.body(),
            max_tokens=self.max_tokens,
            metadata={"user_id": "user_1_account__session_2"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            betas=["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
        ) as stream:
            return await stream.get_final_message()

    async def small(self, text):
        """A small question to the small model."""
        system = [{"type": "text", "text": "Say what this is about."}]
        body = asks("claude-small", system=system, max_tokens=512)
        return await self._client.messages.create(**{**body, "messages": [{"role": "user", "content": text}]})


async def test_a_long_session_with_small_requests_beside_it_runs_without_a_mismatch(client):
    session = Session(client)
    reminder = {"type": "text", "text": "<system-reminder>Be kind.</system-reminder>"}
    asked = session.turn(
        reminder, {"type": "text", "text": "What is the weather?", "cache_control": {"type": "ephemeral"}}
    )
    (message, counted), *small = await asyncio.gather(asked, *(session.small(f"Topic {number}") for number in range(4)))
    assert {answer.content[0].text for answer in small} == {SPOKEN}
    assert {answer.model for answer in small} == {"claude-small"}
    assert session.max_tokens < 32000
    for _ in range(3):
        assert prompt_of(message) == counted
        assert message.model == "claude-large"
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        before = counted
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "17 degrees"} for block in message.content[2:]
        ]
        message, counted = await session.turn(*results, reminder)
        assert message.usage.cache_read_input_tokens >= before
        assert counted > before


async def test_the_clients_classes_of_errors(client, served):
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await client.messages.create(**asks("speakr"))
    assert unknown.value.body["error"]["details"] == {"suggestions": ["speaker"]}
    with pytest.raises(anthropic.BadRequestError) as long:
        await client.messages.create(**asks("speaker", messages=[{"role": "user", "content": "1" * 40_000}]))
    assert "prompt is too long" in str(long.value)
    with pytest.raises(anthropic.PermissionDeniedError):
        await client.messages.create(**asks("speaker"), extra_headers={"Origin": "https://evil.example"})
    assert len([model async for model in client.models.list()]) == 4


def test_the_snippet_of_the_document_runs(served):
    [snippet] = [text for _, text in blocks(page("api-anthropic"), "python")]
    code = snippet.replace("http://127.0.0.1:8484", served.url).replace('"qwen"', '"speaker"')
    assert served.url in code
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "api-anthropic.md", "exec"), {})
    assert shown.getvalue().count(SPOKEN) == 2
