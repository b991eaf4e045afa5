"""Bodies that cannot be served: each is refused with the field at fault, and none reaches an engine."""

import json

import pytest
from api_calls import by_hand, until
from api_fakes import serving
from responses_calls import TOOL, call, user, wanted

from mlxd.daemon.api.responses.store import STORE

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "x"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
FORM = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


def item(*items):
    return {"input": list(items)}


BAD = [
    # input
    ({"input": None}, "input"),
    ({"input": 5}, "input"),
    ({"input": True}, "input"),
    ({"input": {}}, "input"),
    ({"input": []}, "input"),
    ({"input": {"role": "user", "content": "x"}}, "input"),
    (item(None), "input[0]"),
    (item("x"), "input[0]"),
    (item([]), "input[0]"),
    (item({}), "input[0].role"),
    (item(user("x"), 5), "input[1]"),
    (item({"role": "user"}), "input[0].content"),
    (item({"content": "x"}), "input[0].role"),
    (item({"role": "tool", "content": "x"}), "input[0].role"),
    (item({"role": 1, "content": "x"}), "input[0].role"),
    (item({"role": "user", "content": None}), "input[0].content"),
    (item({"role": "user", "content": []}), "input[0].content"),
    (item({"role": "user", "content": [5]}), "input[0].content[0]"),
    (item({"role": "user", "content": [{}]}), "input[0].content[0].type"),
    (item({"role": "user", "content": [{"type": "text", "text": "x"}]}), "input[0].content[0].type"),
    (item({"role": "user", "content": [{"type": "input_text"}]}), "input[0].content[0].text"),
    (item({"role": "user", "content": [{"type": "input_text", "text": None}]}), "input[0].content[0].text"),
    (item({"role": "user", "content": [{"type": "input_text", "text": "x", "a": 1}]}), "input[0].content[0].a"),
    (item({**user("x"), "unknown": 1}), "input[0].unknown"),
    (item({**user("x"), "status": "done"}), "input[0].status"),
    (item({**user("x"), "id": ""}), "input[0].id"),
    (item({**user("x"), "id": "i" * 300}), "input[0].id"),
    (item({**user("x"), "type": 5}), "input[0].type"),
    (item({**user("x"), "type": []}), "input[0].type"),
    (item({**user("x"), "type": "nonsense"}), "input[0].type"),
    (item({**user("x"), "type": "web_search_call"}), "input[0].type"),
    (item({"type": "item_reference"}), "input[0].id"),
    (item({"type": "item_reference", "id": 5}), "input[0].id"),
    # tool histories
    (item(RESULT), "input[0].call_id"),
    (item(RESULT, CALL), "input[0].call_id"),
    (item(CALL, {**RESULT, "call_id": "c2"}), "input[1].call_id"),
    (item(CALL, {**RESULT, "call_id": None}), "input[1].call_id"),
    (item(CALL, {"type": "function_call_output", "output": "x"}), "input[1].call_id"),
    (item(CALL, {**RESULT, "output": None}), "input[1].output"),
    (item(CALL, {**RESULT, "output": {"a": 1}}), "input[1].output"),
    (item(CALL, {**RESULT, "output": []}), "input[1].output"),
    (item({**CALL, "arguments": None}), "input[0].arguments"),
    (item({**CALL, "arguments": {}}), "input[0].arguments"),
    (item({**CALL, "arguments": "{"}), "input[0].arguments"),
    (item({**CALL, "arguments": "[1]"}), "input[0].arguments"),
    (item({**CALL, "arguments": "[" * 100_000}), "input[0].arguments"),
    (item({**CALL, "arguments": '{"a":' + "[" * 100 + "]" * 100 + "}"}), "input[0].arguments"),
    (item({**CALL, "arguments": "NaN"}), "input[0].arguments"),
    (item({**CALL, "name": ""}), "input[0].name"),
    (item({**CALL, "name": "n" * 200}), "input[0].name"),
    (item({**CALL, "namespace": "x"}), "input[0].namespace"),
    (item({"type": "function_call", "name": "f", "arguments": "{}"}), "input[0].call_id"),
    # reasoning
    (item(THOUGHT), "input"),
    (item({**THOUGHT, "content": "x"}), "input[0].content"),
    (item({**THOUGHT, "content": [{"type": "summary_text", "text": "x"}]}), "input[0].content[0].type"),
    (item({**THOUGHT, "encrypted_content": "gAAAA"}), "input[0].encrypted_content"),
    # other fields
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"instructions": ["x"]}, "instructions"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"previous_response_id": "r" * 300}, "previous_response_id"),
    ({"store": "yes"}, "store"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"include": "message.output_text.logprobs"}, "include"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "0"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"max_output_tokens": 10**400}, "max_output_tokens"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"messages": [user("x")]}, "messages"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"__proto__": 1}, "__proto__"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
    ({"reasoning": {"nonsense": 1}}, "reasoning.nonsense"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {**FORM, "name": ""}}}, "text.format.name"),
    ({"text": {"format": {**FORM, "schema": {"a": "x" * 300_000}}}}, "text.format"),
    # tools
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
    ({"tools": [{**TOOL, "function": {}}]}, "tools[0].function"),
    ({"tools": [{**TOOL, "parameters": "x"}]}, "tools[0].parameters"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [{**TOOL, "async": True}]}, "tools[0].async"),
    ({"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers[0]"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}, {"type": "custom", "name": "x"}], "tool_choice": "required"}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "x"}, TOOL, TOOL]}, "tools[2].name"),
    ({"tools": [{"type": "web_search"}, {**TOOL, "async": True}]}, "tools[1].async"),
    ({"tools": [{"type": "web_search"}, TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes", "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice.type"),
    ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice.name"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "tools": [TOOL]}, "tool_choice.tools"),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}},
        "tool_choice.tools[0].name",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "never", "tools": [{"type": "function", "name": "f"}]}},
        "tool_choice.mode",
    ),
    ({"tool_choice": "required", "tools": [TOOL], "text": {"format": FORM}}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
]

UNSUPPORTED = [
    (item({"role": "user", "content": [{"type": kind, **fields}]}), word)
    for kind, fields, word in (
        ("input_image", {"image_url": "file:///etc/passwd"}, "images"),
        ("input_file", {"file_id": "x"}, "input_file"),
        ("input_audio", {}, "input_audio"),
    )
]


async def engine_is_untouched(served):
    await until(lambda: len(served.services.running) == 0)
    assert served.engine.arrivals.empty()
    assert len(served.application[STORE]) == 0


async def test_each_bad_body_is_refused_with_the_field_at_fault():
    wrong = []
    async with serving() as served:
        for stream in ({}, {"stream": True}):
            for fields, param in BAD:
                status, answer = await call(served, "POST", "/v1/responses", wanted(**{**stream, **fields}))
                error = answer["error"]
                if (status, error["code"], error["param"]) != (400, "invalid_request", param):
                    wrong.append((fields, status, error))
        await engine_is_untouched(served)
    assert len(BAD) > 100
    assert wrong == []


@pytest.mark.parametrize(("fields", "kind"), UNSUPPORTED)
async def test_what_is_no_text_is_a_capability_that_the_model_lacks(fields, kind):
    async with serving() as served:
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            status, answer = await call(served, "POST", path, {"model": "m", **fields})
            assert (status, answer["error"]["code"]) == (400, "unsupported_capability")
            assert answer["error"]["param"] == "input[0].content[0]"
            assert kind in answer["error"]["message"]
        await engine_is_untouched(served)


async def test_an_effort_that_the_template_does_not_know_is_one_too():
    async with serving() as served:
        status, answer = await call(served, "POST", "/v1/responses", wanted(reasoning={"effort": "high"}))
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "unsupported_capability", "reasoning.effort")
        await engine_is_untouched(served)


async def test_unknown_ids_are_not_found_and_named():
    async with serving() as served:
        for fields, param in (
            ({"previous_response_id": "resp_nobody"}, "previous_response_id"),
            ({"previous_response_id": ""}, "previous_response_id"),
            ({"previous_response_id": "../../etc/passwd"}, "previous_response_id"),
            (item(user("x"), {"id": "msg_nobody"}), "input[1].id"),
            (item({"type": "item_reference", "id": "msg_nobody"}), "input[0].id"),
        ):
            for path in ("/v1/responses", "/v1/responses/input_tokens"):
                status, answer = await call(served, "POST", path, wanted(**fields))
                assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "response_not_found", param)
        await engine_is_untouched(served)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"{",
        b'{"model": "m", "input": NaN}',
        b'{"model": "m", "input": "\xff"}',
        b'{"model": "m", "input": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "m", "input": "\\ud800"}',
    ],
)
async def test_what_is_no_object_of_json_is_refused(body):
    async with serving() as served:
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            head = f"POST {path} HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: {len(body)}"
            status, _, data = await by_hand(served.port, head, body)
            assert (status, json.loads(data)["error"]["code"]) == (400, "invalid_request"), data
        await engine_is_untouched(served)


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/responses"), ("GET", "/v1/responses"), ("POST", "/v1/responses/compact")]
)
async def test_calls_that_are_not_there_are_refused(method, path):
    async with serving() as served:
        status, answer = await call(served, method, path)
        assert (status, answer["error"]["code"]) == (405, "method_not_allowed")
