"""A hostile client: whatever it sends, the answer is a documented refusal, and the next client is served."""

import gzip
import json
import zlib

import pytest
from daemon_process import Api, chat_body, daemon
from hostile import (
    ADMIN_BODIES,
    BAD_FIELDS,
    BAD_MESSAGES,
    BAD_PROMPTS,
    CHAT,
    NOT_JSON,
    TEXT,
    USER,
    body_of,
    connect,
    exchange,
    get_bytes,
    post_bytes,
)
from tiny_models import place_models

CONFIG = "[engine]\nmax_tokens = 4\n"
REFUSED = {
    "invalid_request",
    "context_length_exceeded",
    "unsupported_capability",
    "model_not_found",
    "unsupported_media_type",
    "body_too_large",
}
GOOD = body_of(chat_body("m", "hi", max_tokens=2))


@pytest.fixture(scope="module")
def served(tmp_path_factory, micro_model):
    """One daemon for all that is sent here; none of it may be a bug."""
    folder = tmp_path_factory.mktemp("hostile")
    models = place_models(folder / "models", {"m": micro_model, "org/load": micro_model})
    with daemon(folder / "d", models, CONFIG) as running:
        yield running
    bugs = [event for event in running.events() if event["level"] in ("error", "critical")]
    assert bugs == []


async def send(api, method, path, data, **headers):
    headers = {"Content-Type": "application/json", **headers}
    async with api._session.request(method, path, data=data, headers=headers) as response:
        assert "X-Request-Id" in response.headers
        return response.status, await response.json()


def bodies():
    """Every bad body with its path."""
    for path in (CHAT, TEXT):
        yield from (("POST", path, raw) for raw in NOT_JSON)
    for method, path in (("POST", "/admin/models/m/load"), ("PATCH", "/admin/models/m"), ("POST", "/admin/unload")):
        yield from ((method, path, raw) for raw in NOT_JSON[1:])
    base = {"model": "m", "max_tokens": 2}
    yield from (("POST", CHAT, body_of({**base, "messages": messages})) for messages in BAD_MESSAGES)
    yield from (("POST", CHAT, body_of({**base, "messages": [USER], **fields})) for fields in BAD_FIELDS)
    chat_only = ("messages", "max_completion_tokens", "chat_template_kwargs")
    texts = [fields for fields in BAD_FIELDS if not any(name in fields for name in chat_only)]
    yield from (("POST", TEXT, body_of({**base, "prompt": "hi", **fields})) for fields in texts)
    yield from (("POST", TEXT, body_of({**base, "prompt": prompt})) for prompt in BAD_PROMPTS)
    yield from ((method, path, body_of(body)) for method, path, body in ADMIN_BODIES)


async def test_a_bad_body_is_refused_and_no_engine_ever_sees_it(served):
    async with Api(served.url) as api:
        first = await api.text("m")
        before = await api.get("/admin/models/m")
        wrong = []
        for method, path, raw in bodies():
            status, answer = await send(api, method, path, raw)
            error = answer.get("error") or {}
            if not 400 <= status < 500 or error.get("code") not in REFUSED or "param" not in error:
                wrong.append((method, path, raw[:200], status, answer))
        assert wrong == []
        after = await api.get("/admin/models/m")
        assert after["engine"]["prompt_tokens"] == before["engine"]["prompt_tokens"]
        assert (after["state"], after["pinned"], after["ttl_s"], after["leases"]) == ("ready", False, None, 0)
        assert await api.text("m") == first


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "assistant", "content": "I begin"}]},
        {"messages": [{"role": "tool", "content": "no call"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        {"messages": [{"role": "user", "content": "\x00\u202e\ufffe<|im_end|><|endoftext|>"}]},
        {"logit_bias": {"511": 100}},
        {"logit_bias": {str(token): -100 for token in range(512)}},
        {"seed": 2**64 - 1},
        {"seed": -(2**63)},
        {"stop": ["\u00e9" * 1000] * 16},
        {"top_k": 2**53, "temperature": 2, "min_p": 1, "seed": 1},
        {"chat_template_kwargs": {"__class__": 1, "range": 1, "bos_token": 5, "a b": [[]]}},
    ],
    ids=lambda fields: str(fields)[:40],
)
async def test_an_odd_but_sane_request_is_answered(served, fields):
    async with Api(served.url) as api:
        status, answer = await api.chat("m", **fields)
        assert status == 200, answer


NO_HTTP = [
    b"\x00\x01\x02\x03\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100,
    b"FOO / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    get_bytes("/v1/models/\xc3\xbc"),
    get_bytes("/v1/models/\x01"),
    get_bytes("http://[::1/x"),
    get_bytes("/" + "a" * 9000),
    get_bytes("/health", "Accept: */*"),
    get_bytes("/health", "Host: 127.0.0.1", "Host: evil.example"),
    get_bytes("/health", "Host : 127.0.0.1"),
    get_bytes("/health", "Host: 127.0.0.1", " folded"),
    get_bytes("/health", "Host: 127.0.0.1", "X: " + "a" * 9000),
    get_bytes("/health", "Host: 127.0.0.1", *(f"X-{number}: a" for number in range(200))),
    get_bytes("/health", "Host: 127.0.0.1", "X: a\x00b"),
    post_bytes(GOOD, version="9.9"),
    post_bytes(GOOD, "Content-Length: -1"),
    post_bytes(GOOD, "Content-Length: 99999999999999999999"),
    post_bytes(GOOD, "Content-Length: 5", "Content-Length: 6"),
    post_bytes(GOOD, "Content-Length: 5", "Transfer-Encoding: chunked"),
    post_bytes(b"zz\r\n", "Transfer-Encoding: chunked"),
    post_bytes(b"FFFFFFFFFFFFFFFFF\r\n", "Transfer-Encoding: chunked"),
    post_bytes(GOOD, "Expect: the-unexpected"),
]


@pytest.mark.parametrize("data", NO_HTTP, ids=lambda data: repr(data[:40]))
async def test_what_is_no_http_is_answered_in_json_with_a_request_id_and_is_no_bug(served, data):
    status, headers, body = await exchange(served, data)
    assert (status, headers["content-type"]) == (400, "application/json"), body
    assert headers["x-request-id"]
    assert json.loads(body)["error"]["code"] == "invalid_request"


async def test_a_chunked_body_that_breaks_later_is_refused_and_is_no_bug(served):
    reader, writer = await connect(served)
    writer.write(post_bytes(b'5\r\n{"a":\r\n', "Transfer-Encoding: chunked"))
    await writer.drain()
    async with Api(served.url) as api:
        await api.get("/health")  # the first chunk has been read by now
    writer.write(b"zz\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.split(b" ")[1] == b"400"
    writer.close()


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", gzip.compress(GOOD, mtime=0), 200),
        ("deflate", zlib.compress(GOOD), 200),
        ("identity", GOOD, 200),
        ("gzip", GOOD, 400),
        ("deflate", b"\x00\xff" * 50, 400),
        ("gzip", gzip.compress(GOOD, mtime=0)[:-9], 400),
        ("gzip", gzip.compress(GOOD, mtime=0) * 2, 400),
        ("gzip", gzip.compress(b" " * 70_000_000, mtime=0), 413),
        ("br", GOOD, 415),
        ("gzip, gzip", gzip.compress(gzip.compress(GOOD, mtime=0), mtime=0), 415),
    ],
)
async def test_an_encoded_body_is_unpacked_within_bounds_or_refused(served, encoding, body, status):
    got, headers, answer = await exchange(served, post_bytes(body, f"Content-Encoding: {encoding}"))
    assert got == status, answer
    assert headers["x-request-id"]


TRICKS = [
    "/v1/models/../../etc/passwd",
    "/v1/models/..%2f..%2fetc%2fpasswd",
    "/v1/models/%00",
    "/v1/models/%ff%fe",
    "/v1/models/%ed%a0%80",
    "/v1/models/m%0d%0aX-Evil:1",
    "/v1/models/m/",
    "//v1/models",
    "//evil.example/health",
    "/health/../admin/models",
    "/health%2fready",
    "/admin/decisions?limit=%D9%A3",
    "/admin/decisions?limit=" + "9" * 5000,
]


@pytest.mark.parametrize("path", TRICKS)
async def test_a_tricky_path_leads_nowhere(served, path):
    status, headers, body = await exchange(served, get_bytes(path))
    assert status in (400, 404), body
    assert "x-evil" not in headers
    assert json.loads(body)["error"]["code"] in ("not_found", "model_not_found", "invalid_request")


async def test_a_model_named_like_a_call_is_loaded_and_unloaded(served):
    async with Api(served.url) as api:
        assert (await api.call("POST", "/admin/models/org/load/load"))[1]["state"] == "ready"
        assert (await api.get("/admin/models/org/load"))["state"] == "ready"
        assert (await api.call("POST", "/admin/models/org/load/unload"))[1]["state"] == "unloaded"


@pytest.mark.parametrize("header", ["Host", "Origin"])
async def test_a_header_that_is_no_text_is_a_refusal(served, header):
    lines = ("Host: 127.0.0.1", f"{header}: \xff") if header != "Host" else ("Host: \xff",)
    status, _, body = await exchange(served, post_bytes(GOOD, *lines[1:], host=lines[0].removeprefix("Host: ")))
    assert status == 403, body


async def test_a_client_that_asks_before_it_sends_is_told_to(served):
    reader, writer = await connect(served)
    writer.write(post_bytes(b"", f"Content-Length: {len(GOOD)}", "Expect: 100-continue"))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    writer.write(GOOD)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_pipelined_requests_are_answered_in_order(served):
    reader, writer = await connect(served)
    writer.write(post_bytes(b"{") + post_bytes(GOOD) * 3 + get_bytes("/health"))
    received = await reader.read(-1)
    statuses = [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [400, 200, 200, 200, 200]
    writer.close()


async def test_a_prompt_far_beyond_the_context_is_refused_before_all_of_it_is_tokenised(served):
    async with Api(served.url) as api:
        text = "1" * 6_000_000  # a token each
        for path, body in ((CHAT, chat_body("m", text)), (TEXT, {"model": "m", "prompt": text})):
            status, answer = await api.call("POST", path, body)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert 32768 < answer["error"]["details"]["prompt_tokens"] < 2_000_000
            assert answer["error"]["param"] == ("messages" if path == CHAT else "prompt")


async def test_a_field_for_a_call_about_everything_is_refused_and_changes_nothing(served):
    async with Api(served.url) as api:
        await api.text("m")
        status, answer = await api.call("POST", "/admin/unload", {"model": "org/load"})
        assert (status, answer["error"]["param"]) == (400, "model")
        assert (await api.states())["m"] == "ready"
        assert (await api.call("POST", "/admin/unload", {}))[0] == 200
        assert (await api.states())["m"] == "unloaded"
