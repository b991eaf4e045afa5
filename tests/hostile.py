"""What a hostile client sends: bodies that cannot be served, and bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

from daemon_process import Daemon

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = {"role": "user", "content": "hi"}

# Values that are wrong for every field that is not a string.
WRONG = [True, -1, 2**63, 2**64, -(2**63) - 1, 1e308, "", "x", [1], [[]], [None], {"a": 1}]
NUMBERS = [
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "min_tokens",
    "xtc_probability",
    "xtc_threshold",
]
OBJECTS = ["stream_options", "logit_bias", "stop", "response_format", "messages"]
OBJECTS += ["tools", "tool_choice", "guided_choice", "structured_outputs"]

NOT_JSON = [
    b" ",
    b"null",
    b"[]",
    b'"x"',
    b'{"a": 1',
    b'{"a": NaN}',
    b"{}{}",
    b"\x00",
    b"\xff\xfe",
    b'{"model": "m", "seed": ' + b"9" * 5000 + b"}",
    b'{"model": "m", "temperature": 1e999}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
    b'{"\\ud800": 1}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"a": [' + b"[]," * 600_000 + b"1]}",
    json.dumps({"model": "m", "messages": [USER]}).encode("utf-16"),
]

BAD_MESSAGES: list[Any] = [
    [],
    [{}],
    [None],
    ["x"],
    {"0": USER},
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": {"type": "text", "text": "x"}}],
    [{"role": "user", "content": [{"type": "bogus"}]}],
    [{"role": "user", "content": [{"type": "text", "text": None}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
    [{"role": "bogus", "content": "x"}],
    [{"role": ["user"], "content": "x"}],
    [{"role": "user", "content": "x", "name": 5}],
    [{"role": "assistant"}],
    [{"role": "assistant", "content": None, "tool_calls": []}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a":' * 5000}}]}],
    [USER] * 10_000,
    [USER] * 100_001,
]
BAD_FIELDS: list[dict[str, Any]] = [
    *({name: value} for name in NUMBERS for value in WRONG if not (name != "max_tokens" and value == -1)),
    *({name: value} for name in OBJECTS for value in (True, 1, [1], [[]], {"a": "b"})),
    *({"stop": value} for value in (["x"] * 17, [""], "", "a" * 10_000, ["a" * 1001], [None])),
    *({"logit_bias": {token: 1}} for token in ("512", "-1", "1.5", "x", "", "\u0663", "9" * 20)),
    *({"logit_bias": {"1": bias}} for bias in (101, -101, None, "1")),
    {"logit_bias": {str(token): 1 for token in range(1025)}},
    *({"seed": value} for value in (2**64, -(2**63) - 1, 1.5, "1", True)),
    *({"max_tokens": value} for value in (0, -1, 32768, 2**53, 2**63)),
    *({"model": value} for value in (None, "", 1, [], "\x00", "a" * 100_000, "../m", "m/", "m\n")),
    *({"chat_template_kwargs": {name: 1}} for name in ("tokenize", "chat_template", "messages", "self")),
    *({name: 1} for name in ("", "a\x00", "\U0001f600", "x" * 10_000, "n_", "messages2")),
    *({"n": value} for value in (0, 17)),
    {"logprobs": 1.5},
    *({"guided_json": value} for value in ("{", "[" * 100_000, {"type": "nothing"}, {"$ref": "#"})),
    *({"guided_regex": value} for value in ("", "(", "x" * 300_000, "[^\\s\\S]", "(\\p{L}|\\p{N}){1,500}" * 50)),
    {"guided_grammar": "start: nobody"},
    {"user": 1},
]
BAD_PROMPTS: list[Any] = [
    "",
    None,
    [],
    [[]],
    [-1],
    [512],
    [True],
    [1.0],
    [2**32],
    [2**64],
    ["a", ""],
    ["a"] * 129,
    ["a", [512]],
    [1, "a"],
    [[1], []],
    [[-1]],
    [[[1]]],
    {},
    [1] * 40_000,
    "x" * 200_000,
]

ADMIN_BODIES: list[tuple[str, str, Any]] = [
    *(
        ("POST", "/admin/models/m/load", {name: value})
        for name in ("pin", "wait", "ttl")
        for value in ([1], {"a": 1}, "x" if name == "ttl" else "never", -1, 2**63, "-1s")
    ),
    *(("POST", "/admin/models/m/unload", {"mode": value}) for value in ("FORCE", "", 1, [])),
    *(("POST", "/admin/models/m/unload", {"timeout": value}) for value in ("never", "x", -1, 1e308, [], True)),
    *(("PATCH", "/admin/models/m", {name: value}) for name in ("pinned", "ttl") for value in ([], {}, "x", -1)),
    *(
        (method, path, {"bogus": 1})
        for method, path in (("PATCH", "/admin/models/m"), ("POST", "/admin/models/m/load"))
    ),
    ("POST", "/admin/unload", {"id": "m"}),
    ("POST", "/admin/abort", {"model": "m"}),
    ("POST", "/admin/abort", []),
]


def body_of(value: Any) -> bytes:
    """JSON, with every character beyond ASCII escaped."""
    return json.dumps(value).encode()


def post_bytes(
    body: bytes, *lines: str, path: str = CHAT, version: str = "1.1", host: str | None = "127.0.0.1"
) -> bytes:
    """A POST by hand; a Content-Length goes with it unless `lines` say how the body comes."""
    own = any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines)
    length = () if own else (f"Content-Length: {len(body)}",)
    hosts = () if host is None else (f"Host: {host}",)
    head = (f"POST {path} HTTP/{version}", *hosts, "Content-Type: application/json", *length, *lines)
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def get_bytes(path: str, *lines: str) -> bytes:
    """A GET by hand that closes its connection."""
    lines = lines or ("Host: 127.0.0.1",)
    return "\r\n".join((f"GET {path} HTTP/1.1", *lines, "Connection: close")).encode("latin-1") + b"\r\n\r\n"


async def connect(daemon: Daemon) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = daemon.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def exchange(daemon: Daemon, data: bytes, within: float = 10.0) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are; status, headers and body of the first answer."""
    reader, writer = await connect(daemon)
    try:
        async with asyncio.timeout(within):
            writer.write(data)
            await writer.drain()
            head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
            return int(head.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))
    finally:
        writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Hang up with a reset, as a crashed client's machine does."""
    own = writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
