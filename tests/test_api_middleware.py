"""Request ids, error envelopes, Host and Origin, through a real server on a real port."""

import gzip
import json

import aiohttp
import pytest
import structlog
from aiohttp import web
from api_calls import by_hand, code_of
from api_fakes import raw, serving

from mlxd.daemon.api.body import read_object
from mlxd.daemon.settings import ServerSettings


async def broken(request):
    raise ZeroDivisionError("secret")


async def echo(request):
    return web.json_response(await read_object(request, optional=True))


EXTRA = [web.get("/broken", broken), web.post("/echo", echo), web.get("/echo", echo)]


@pytest.mark.parametrize("sent", ["abc", "a.b_c:d-E9", "x" * 128])
async def test_a_sane_request_id_comes_back(sent):
    async with serving(extra=EXTRA) as served:
        for path in ("/v1/models", "/nowhere", "/broken"):
            _, headers, _ = await by_hand(served.port, f"GET {path} HTTP/1.1\nHost: localhost\nX-Request-Id: {sent}")
            assert headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a\tb", "é", "{}", "a/b"])
async def test_any_other_request_id_is_replaced(sent):
    async with serving() as served:
        _, headers, _ = await by_hand(served.port, f"GET /nowhere HTTP/1.1\nHost: localhost\nX-Request-Id: {sent}")
        assert headers["x-request-id"].startswith("req-")


async def test_every_request_gets_an_id_of_its_own_also_on_one_connection():
    async with serving() as served, aiohttp.ClientSession() as http:
        seen = [(await http.get(f"{served.url}/v1/models")).headers["X-Request-Id"] for _ in range(3)]
        assert len(set(seen)) == 3


async def test_the_request_id_is_bound_for_the_log_and_gone_afterwards():
    seen = []

    async def look(request):
        seen.append(structlog.contextvars.get_contextvars().get("request_id"))
        return web.Response()

    async with serving(extra=[web.get("/look", look)]) as served:
        await by_hand(served.port, "GET /look HTTP/1.1\nHost: localhost\nX-Request-Id: seen-1")
    assert seen == ["seen-1"]
    assert "request_id" not in structlog.contextvars.get_contextvars()


async def test_unknown_paths_and_methods_are_answered_in_the_envelope():
    async with serving() as served:
        assert await code_of(served.port, "GET /v2 HTTP/1.1\nHost: localhost") == (404, "not_found")
        status, headers, data = await by_hand(served.port, "PUT /v1/models HTTP/1.1\nHost: localhost")
        assert (status, json.loads(data)["error"]["code"]) == (405, "method_not_allowed")
        assert "GET" in headers["allow"]


async def test_a_bug_is_a_500_with_the_request_id_and_without_its_text():
    async with serving(extra=EXTRA) as served:
        status, _, data = await by_hand(served.port, "GET /broken HTTP/1.1\nHost: localhost\nX-Request-Id: r-9")
        assert status == 500
        assert "r-9" in json.loads(data)["error"]["message"]
        assert b"secret" not in data


async def test_a_body_over_the_limit_is_refused_announced_or_not():
    async with serving(server=ServerSettings(max_body=1000), extra=EXTRA) as served:
        head = "POST /echo HTTP/1.1\nHost: localhost\nContent-Type: application/json"
        big = b'{"a": "' + b"x" * 1000 + b'"}'
        assert await code_of(served.port, f"{head}\nContent-Length: 1000000", b"{") == (413, "body_too_large")
        assert await code_of(served.port, f"{head}\nContent-Length: {len(big)}", big) == (413, "body_too_large")
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(big), big)
        assert await code_of(served.port, f"{head}\nTransfer-Encoding: chunked", chunked) == (413, "body_too_large")
        bomb = gzip.compress(b'{"a": "' + b"x" * 500_000 + b'"}')
        zipped = f"{head}\nContent-Encoding: gzip\nContent-Length: {len(bomb)}"
        assert await code_of(served.port, zipped, bomb) == (413, "body_too_large")


async def test_a_zipped_body_is_read_and_a_badly_zipped_one_is_refused():
    async with serving(extra=EXTRA) as served:
        head = "POST /echo HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Encoding: gzip"
        good = gzip.compress(b'{"a": 1}')
        status, _, data = await by_hand(served.port, f"{head}\nContent-Length: {len(good)}", good)
        assert (status, json.loads(data)) == (200, {"a": 1})
        assert await code_of(served.port, f"{head}\nContent-Length: 8", b"not gzip") == (400, "invalid_request")


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=UTF-8", 200),
        ('application/json; charset="utf-8"', 200),
        ("application/vnd.api+json", 200),
        (None, 200),
        ("", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=latin-1", 415),
        ("application/jsonp", 415),
    ],
)
async def test_a_body_is_json_or_of_no_type(content_type, status):
    line = "" if content_type is None else f"\nContent-Type: {content_type}"
    async with serving(extra=EXTRA) as served:
        head = f"POST /echo HTTP/1.1\nHost: localhost\nContent-Length: 2{line}"
        assert (await by_hand(served.port, head, b"{}"))[0] == status


async def test_no_body_needs_no_type_and_is_an_empty_object_where_that_is_enough():
    async with serving(extra=EXTRA) as served:
        head = "POST /echo HTTP/1.1\nHost: localhost\nContent-Type: text/plain\nContent-Length: 0"
        assert (await by_hand(served.port, head))[0] == 200
        chat = "POST /v1/chat/completions HTTP/1.1\nHost: localhost"
        assert await code_of(served.port, chat) == (400, "invalid_request")


async def test_a_client_that_leaves_while_it_sends_its_body_does_no_harm(caplog):
    async with serving(extra=EXTRA) as served:
        head = "POST /echo HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: 100"
        _, writer = await raw(served.port, head, b'{"a"')
        writer.transport.abort()
        assert (await by_hand(served.port, "GET /v1/models HTTP/1.1\nHost: localhost"))[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
