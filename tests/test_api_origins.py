"""Which Host names and which origins are served, through a real server."""

import asyncio

import pytest
from aiohttp import web
from api_calls import by_hand, code_of
from api_fakes import HELLO, answer_head, last, post, raw, serving

from mlxd.daemon.api.application import make_application
from mlxd.daemon.api.origins import host_is_allowed, origin_is_allowed
from mlxd.daemon.settings import ServerSettings

CORS = ServerSettings(cors_origins=("https://app.example",))


async def broken(request):
    raise ZeroDivisionError("secret")


ALLOWED = [
    "localhost",
    "LOCALHOST:8484",
    "app.localhost",
    "127.0.0.1",
    "127.0.0.1:1",
    "127.9.9.9",
    "[::1]:8484",
    "[::1]",
]
FOREIGN = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.0.9", "[fe80::1]", "a b", "x@y"]


@pytest.mark.parametrize("host", ALLOWED)
def test_loopback_names_are_allowed(host):
    assert host_is_allowed(host, ServerSettings())


@pytest.mark.parametrize("host", [*FOREIGN, "localhost:port", "[::1", "", "localhost/", "localhost:8484:1"])
def test_foreign_names_are_not_allowed(host):
    assert not host_is_allowed(host, ServerSettings())


def test_the_configured_host_and_allowed_hosts_are_allowed():
    server = ServerSettings(host="box.local", allowed_hosts=("proxy.example", "other.example:99", "[fd00::1]"))
    for host in ("box.local:8484", "BOX.local.", "proxy.example", "proxy.example:1", "other.example:99", "[fd00::1]:8"):
        assert host_is_allowed(host, server)
    for host in ("other.example", "other.example:98", "sub.proxy.example", "10.0.0.1"):
        assert not host_is_allowed(host, server)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_a_daemon_on_all_addresses_is_reached_by_address_but_not_by_unknown_names(bind):
    server = ServerSettings(host=bind)
    assert host_is_allowed("192.168.0.9:8484", server)
    assert host_is_allowed("[fd00::1]:8484", server)
    assert not host_is_allowed("evil.example", server)


async def test_a_foreign_host_is_refused_also_for_reading_and_for_unknown_paths():
    async with serving() as served:
        for line in ("GET /v1/models", "GET /nowhere", "POST /v1/chat/completions", "OPTIONS /v1/models"):
            head = f"{line} HTTP/1.1\nHost: evil.example:8484"
            assert await code_of(served.port, head) == (403, "host_not_allowed")


async def test_two_host_headers_are_refused():
    async with serving() as served:
        reader, writer = await raw(served.port, "GET /v1/models HTTP/1.1\nHost: localhost\nHost: evil.example")
        assert (await answer_head(reader))[0] in (400, 403)
        writer.close()


async def test_a_missing_host_is_allowed():
    async with serving() as served:
        assert (await by_hand(served.port, "GET /v1/models HTTP/1.0"))[0] == 200


async def test_on_a_unix_socket_any_host_is_allowed(tmp_path):
    async with serving() as served:
        runner = web.AppRunner(make_application(served.services))
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "s")).start()
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: mlxd\r\n\r\n")
        assert (await answer_head(reader))[0] == 200
        writer.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://localhost:8484", "localhost:8484", True),
        ("http://LOCALHOST:8484", "localhost:8484", True),
        ("http://[::1]:8484", "[::1]:8484", True),
        ("http://box.local", "box.local", True),
        ("https://box.local", "box.local:443", True),
        ("http://localhost:3000", "localhost:8484", False),
        ("http://127.0.0.1:8484", "localhost:8484", False),
        ("https://evil.example", "localhost:8484", False),
        ("null", "localhost:8484", False),
        ("", "localhost:8484", False),
        ("file://localhost:8484", "localhost:8484", False),
        ("http://localhost:8484", None, False),
        ("http://localhost:99999", "localhost:99999", False),
        ("http://[::1", "[::1", False),
        ("https://app.example", "localhost:8484", True),
        ("https://APP.example", None, True),
        ("http://app.example", "localhost:8484", False),
        ("https://app.example.evil", "localhost:8484", False),
    ],
)
def test_a_change_comes_from_the_same_or_from_a_configured_origin(origin, host, allowed):
    assert origin_is_allowed(origin, host, CORS) is allowed


async def test_a_change_from_another_origin_is_refused_before_anything_happens():
    async with serving() as served:
        for method in ("POST", "DELETE", "PATCH", "PUT"):
            head = f"{method} /v1/chat/completions HTTP/1.1\nHost: localhost\nOrigin: https://evil.example"
            assert await code_of(served.port, head) == (403, "origin_not_allowed")
        assert served.registry.waits.empty()


async def test_a_page_of_the_daemon_itself_may_change_things():
    async with serving() as served:
        here = f"localhost:{served.port}"
        head = f"DELETE /v1/requests/none HTTP/1.1\nHost: {here}\nOrigin: http://{here}"
        assert await code_of(served.port, head) == (404, "request_not_found")


async def test_reading_from_another_origin_gets_no_cors_header():
    async with serving(server=CORS) as served:
        head = "GET /v1/models HTTP/1.1\nHost: localhost\nOrigin: https://evil.example"
        status, headers, _ = await by_hand(served.port, head)
        assert status == 200
        assert "access-control-allow-origin" not in headers


PREFLIGHT = (
    "OPTIONS /v1/chat/completions HTTP/1.1\nHost: localhost\nOrigin: {}\nAccess-Control-Request-Method: POST\n"
    "Access-Control-Request-Headers: authorization, content-type, x-stainless-os"
)


async def test_a_preflight_is_answered_for_configured_origins_only():
    async with serving(server=CORS) as served:
        status, headers, _ = await by_hand(served.port, PREFLIGHT.format("https://app.example"))
        assert status == 204
        assert headers["access-control-allow-origin"] == "https://app.example"
        assert "POST" in headers["access-control-allow-methods"]
        assert headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-os"
        assert headers["vary"] == "Origin"
        assert headers["x-request-id"]
        refused = await code_of(served.port, PREFLIGHT.format("https://evil.example"))
        assert refused == (403, "origin_not_allowed")
    async with serving() as served:
        refused = await code_of(served.port, PREFLIGHT.format("https://app.example"))
        assert refused == (403, "origin_not_allowed")


@pytest.mark.parametrize("origin", ["https://app.example", "https://any.example"])
async def test_every_kind_of_answer_carries_cors_for_a_configured_origin(origin):
    server = CORS if origin == "https://app.example" else ServerSettings(cors_origins=("*",))
    async with serving(server=server, extra=[web.get("/broken", broken)]) as served:
        for path in ("/v1/models", "/nowhere", "/broken"):
            _, headers, _ = await by_hand(served.port, f"GET {path} HTTP/1.1\nHost: localhost\nOrigin: {origin}")
            assert headers["access-control-allow-origin"] == origin
        reader, writer = await post(served.port, "/v1/chat/completions", {**HELLO, "stream": True}, Origin=origin)
        request = await served.engine.arrivals.get()
        served.engine.put(request, last("x"))
        status, headers = await answer_head(reader)
        assert status == 200
        assert headers["access-control-allow-origin"] == origin
        assert headers["x-request-id"] == request.id
        writer.close()
