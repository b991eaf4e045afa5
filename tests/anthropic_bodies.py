"""Bodies that the Anthropic calls refuse: each is a change to a good one, with the field that the refusal names."""

from __future__ import annotations

from typing import Any

USER = {"role": "user", "content": "hi"}
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "1"}
TEXT = {"type": "text", "text": "x"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
CALLED = {"role": "assistant", "content": [CALL]}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def document(source: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **fields}


# Messages, and the field that is at fault.
BAD_MESSAGES: list[tuple[Any, str]] = [
    ([], "messages"),
    (None, "messages"),
    ("hi", "messages"),
    ({"0": USER}, "messages"),
    ([None], "messages[0]"),
    (["hi"], "messages[0]"),
    ([{}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"content": "x"}], "messages[0].role"),
    ([{"role": "tool", "content": "x"}], "messages[0].role"),
    ([{"role": ["user"], "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": {"type": "text", "text": "x"}}], "messages[0].content"),
    ([{"role": "user", "content": "x", "name": "me"}], "messages[0].name"),
    ([{"role": "user", "content": []}], "messages[0].content"),
    ([USER, {"role": "system", "content": []}], "messages[1].content"),
    ([{"role": "assistant", "content": []}], "messages"),
    ([{"role": "assistant", "content": ""}], "messages"),
    ([user(None)], "messages[0].content[0]"),
    ([user("x")], "messages[0].content[0]"),
    ([user({})], "messages[0].content[0].type"),
    ([user({"type": "bogus"})], "messages[0].content[0].type"),
    ([user({"type": 5})], "messages[0].content[0].type"),
    ([user({"type": "text"})], "messages[0].content[0].text"),
    ([user({"type": "text", "text": None})], "messages[0].content[0].text"),
    ([user({"type": "text", "text": 5})], "messages[0].content[0].text"),
    ([user({**TEXT, "extra": 1})], "messages[0].content[0].extra"),
    ([user({**TEXT, "cache_control": "ephemeral"})], "messages[0].content[0].cache_control"),
    ([user(TEXT, PIXEL)], "messages[0].content[1]"),
    ([user({"type": "image"})], "messages[0].content[0].source"),
    ([user({"type": "image", "source": "file:///etc/passwd"})], "messages[0].content[0].source"),
    ([user(document(PDF))], "messages[0].content[0].source"),
    ([user(document({"type": "url", "url": "file:///etc/passwd"}))], "messages[0].content[0].source"),
    ([user(document({"type": "file", "file_id": "f"}))], "messages[0].content[0].source"),
    ([user(document({"type": "bogus"}))], "messages[0].content[0].source.type"),
    ([user(document({"type": "text", "data": "x"}))], "messages[0].content[0].source.media_type"),
    (
        [user(document({"type": "text", "data": "x", "media_type": "text/html"}))],
        "messages[0].content[0].source.media_type",
    ),
    (
        [user(document({"type": "content", "content": [TEXT, PIXEL]}))],
        "messages[0].content[0].source.content[1]",
    ),
    (
        [user(document({"type": "text", "data": "x", "media_type": "text/plain"}, citations={"enabled": True}))],
        "messages[0].content[0].citations.enabled",
    ),
    ([user({"type": "search_result", "source": "s", "title": "t", "content": [TEXT]})], "messages[0].content[0].type"),
    ([USER, assistant({"type": "server_tool_use", "id": "s", "name": "web_search"})], "messages[1].content[0].type"),
    ([user({"type": "container_upload", "file_id": "f"})], "messages[0].content[0].type"),
    ([user(CALL)], "messages[0].content[0].type"),
    ([user({"type": "thinking", "thinking": "x", "signature": ""})], "messages[0].content[0].type"),
    ([USER, assistant(PIXEL), USER], "messages[1].content[0].type"),
    ([USER, assistant(RESULT), USER], "messages[1].content[0].type"),
    ([USER, assistant({"type": "thinking", "thinking": "x"})], "messages[1].content[0].signature"),
    ([USER, {"role": "system", "content": [PIXEL]}], "messages[1].content[0].type"),
    ([USER, {"role": "system", "content": [document(PDF)]}], "messages[1].content[0].type"),
    # calls and results
    ([user(RESULT)], "messages[0].content[0].tool_use_id"),
    ([USER, CALLED], "messages[1].content[0]"),
    ([USER, CALLED, USER], "messages[1].content[0]"),
    ([USER, CALLED, {"role": "system", "content": "x"}, user(RESULT)], "messages[1].content[0]"),
    ([USER, CALLED, user(TEXT, RESULT)], "messages[2].content[1]"),
    ([USER, CALLED, USER, user(RESULT)], "messages[3].content[0]"),
    ([USER, CALLED, user({**RESULT, "tool_use_id": "t2"})], "messages[2].content[0].tool_use_id"),
    ([USER, CALLED, user(RESULT, RESULT)], "messages[2].content[1].tool_use_id"),
    ([USER, assistant(CALL, {**CALL, "id": "t2"}), user(RESULT)], "messages[1].content[1]"),
    ([USER, assistant(CALL, CALL), user(RESULT)], "messages[1].content[1].id"),
    ([USER, CALLED, user(RESULT), CALLED, user(RESULT)], "messages[3].content[0].id"),
    ([USER, CALLED, user(RESULT, TEXT), USER, user(RESULT)], "messages[4].content[0]"),
    ([USER, CALLED, user(RESULT), assistant(TEXT), user(RESULT)], "messages[4].content[0].tool_use_id"),
    ([USER, assistant({**CALL, "input": "{}"}), user(RESULT)], "messages[1].content[0].input"),
    ([USER, assistant({**CALL, "input": None}), user(RESULT)], "messages[1].content[0].input"),
    ([USER, assistant({**CALL, "id": ""}), user(RESULT)], "messages[1].content[0].id"),
    ([USER, assistant({**CALL, "name": ""}), user(RESULT)], "messages[1].content[0].name"),
    ([USER, assistant({**CALL, "caller": {"type": "code_execution_20250825"}})], "messages[1].content[0].caller.type"),
    ([USER, assistant({**CALL, "toolset_name": "computer"})], "messages[1].content[0].toolset_name"),
    ([USER, CALLED, user({**RESULT, "content": 5})], "messages[2].content[0].content"),
    ([USER, CALLED, user({**RESULT, "is_error": "no"})], "messages[2].content[0].is_error"),
    ([USER, CALLED, user({**RESULT, "content": [PIXEL]})], "messages[2].content[0].content[0]"),
    ([USER, CALLED, user({**RESULT, "content": [CALL]})], "messages[2].content[0].content[0].type"),
    (
        [USER, CALLED, user({**RESULT, "content": [{"type": "tool_reference", "tool_name": "f"}]})],
        "messages[2].content[0].content[0].type",
    ),
    # the beginning of an answer
    ([USER, {"role": "assistant", "content": "The answer is "}], "messages[1].content"),
    ([USER, assistant(TEXT, {"type": "text", "text": "\n"})], "messages[1].content[1]"),
    ([USER, assistant({"type": "thinking", "thinking": "x", "signature": ""})], "messages[1].content[0]"),
]

# Fields, and the one that is at fault.
BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    *(({"max_tokens": value}, "max_tokens") for value in (0, -1, 1.5, "9", None, True, [], 2**64)),
    *(({"model": value}, "model") for value in (5, [], {})),
    *(({"system": value}, "system") for value in (5, {}, {"type": "text", "text": "x"})),
    ({"system": [PIXEL]}, "system[0].type"),
    ({"system": ["x"]}, "system[0]"),
    ({"system": [{"type": "text"}]}, "system[0].text"),
    *(({"stream": value}, "stream") for value in (1, "true", [])),
    *(({"stop_sequences": value}, "stop_sequences") for value in ("x", 5, {}, ["x"] * 17)),
    *(({"stop_sequences": [value]}, "stop_sequences[0]") for value in ("", 5, None, "x" * 1001)),
    *(({"temperature": value}, "temperature") for value in (-0.1, 2.1, "0", True, [])),
    *(({"top_p": value}, "top_p") for value in (0, 1.1, "1")),
    *(({"top_k": value}, "top_k") for value in (-1, 1.5, "1")),
    # thinking
    *(({"thinking": value}, "thinking") for value in (True, "enabled", 5, [])),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    *(
        ({"thinking": {"type": "enabled", "budget_tokens": value}}, "thinking.budget_tokens")
        for value in (0, 1023, -1, 1.5, "2000", None, 2**64)
    ),
    ({"thinking": {"type": "disabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
    # the form
    ({"output_config": "low"}, "output_config"),
    ({"output_config": {"effort": "none"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": "{}"}}}, "output_config.format.schema"),
    ({"output_config": {"bogus": 1}}, "output_config.bogus"),
    (
        {
            "output_config": {"format": {"type": "json_schema", "schema": {}}},
            "output_format": {"type": "json_schema", "schema": {}},
        },
        "output_format",
    ),
    (
        {
            "output_format": {"type": "json_schema", "schema": {}},
            "tools": [TOOL],
            "tool_choice": {"type": "any"},
        },
        "tool_choice",
    ),
    # tools
    *(({"tools": value}, "tools") for value in ("f", 5, {}, {"f": TOOL})),
    ({"tools": [None]}, "tools[0]"),
    ({"tools": [TOOL] * 513}, "tools"),
    ({"tools": [{}]}, "tools[0].name"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    *(({"tools": [{**TOOL, "name": value}]}, "tools[0].name") for value in ("", "a b", "ä", "x" * 129, 5, None)),
    *(({"tools": [{**TOOL, "input_schema": value}]}, "tools[0].input_schema") for value in ("{}", None, [])),
    ({"tools": [{**TOOL, "description": 5}]}, "tools[0].description"),
    ({"tools": [{**TOOL, "parameters": {}}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}, "tools[0].type"),
    ({"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
    *(({"tools": [TOOL], "tool_choice": value}, "tool_choice") for value in ("auto", "any", 5, [])),
    ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "none", "disable_parallel_tool_use": True}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    # what is not there
    ({"container": "c"}, "container"),
    ({"mcp_servers": [{"type": "url", "url": "http://169.254.169.254/", "name": "x"}]}, "mcp_servers"),
    ({"compaction": {"type": "summarize"}}, "compaction"),
    ({"thread": {"type": "new"}}, "thread"),
    ({"fallback_credit_token": "x"}, "fallback_credit_token"),
    ({"max_token": 5}, "max_token"),
    ({"stop": ["x"]}, "stop"),
    ({"n": 2}, "n"),
    ({"seed": 1}, "seed"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"metadata": "me"}, "metadata"),
    ({"cache_control": "ephemeral"}, "cache_control"),
    ({"": 1}, ""),
    ({"x" * 10_000: 1}, "x" * 60),
]

# What does not go with the beginning of an answer.
BEGUN = [USER, {"role": "assistant", "content": "It is"}]
BAD_BEGINNINGS: list[dict[str, Any]] = [
    {"thinking": {"type": "adaptive"}},
    {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    {"tools": [TOOL], "tool_choice": {"type": "any"}},
    {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
]
