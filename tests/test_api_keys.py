"""Who may call what: keys in either header, their scopes and their models, and what those without one get to know."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
import structlog
from aiohttp import web
from api_calls import CHAT, ask, hello, within
from api_fakes import answer_head, last, live, raw, serving
from structlog.testing import capture_logs
from virtual_time import passes

from mlxd.daemon.api.application import PARTS
from mlxd.daemon.api.failed_attempts import MAX_ADDRESSES, OTHERS, WINDOW, FailedAttempts
from mlxd.daemon.api.refusals import HostNotAllowed, InvalidApiKey
from mlxd.daemon.api.server import make_runner
from mlxd.daemon.key_ring import KeyRing
from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.daemon.keys_file import add_key
from mlxd.daemon.settings import ModelsSettings, ServerSettings, Settings
from mlxd.registry.explain import Blocker, Plan, Verdict
from mlxd.registry.spec import ModelSpec

ROUTES = [route for part in PARTS for route in part.routes()]
CLOSED = [route for route in ROUTES if route.scope is not None]
OPEN = [route for route in ROUTES if route.scope is None]
every_closed_call = pytest.mark.parametrize("route", CLOSED, ids=lambda route: f"{route.method} {route.name}")


def key(name, *scopes, models=()):
    return ApiKey(name, scopes or (Scope.INFER,), hash_of(f"mlxd-{name}"), datetime.now(UTC), models)


KEYS = (
    key("user"),
    key("other"),
    key("watch", Scope.READ),
    key("boss", Scope.ADMIN),
    key("embed", models=("org/*",)),
    key("cold", Scope.ADMIN, models=("m-cold",)),
    key("half", Scope.ADMIN, models=("m",)),
)


def bearer(name):
    return {"Authorization": f"Bearer mlxd-{name}"}


def place(route):
    return route.name.replace("{id}", "m").replace("{", "x").replace("}", "")


async def call(served, method, path, headers=None, body=None):
    """Status and code of the answer, which is JSON."""
    async with aiohttp.ClientSession() as http:
        sent = http.request(method, served.url + path, headers=headers, json=body)
        async with sent as answer:
            found = await answer.json()
            refused = found.get("error")
            return answer.status, refused.get("code") if isinstance(refused, dict) else refused


async def names(served, path, headers):
    async with aiohttp.ClientSession() as http, http.get(served.url + path, headers=headers) as answer:
        return [model["id"] for model in (await answer.json())["data"]]


async def by_hand(served, *lines, method="GET", path="/v1/models"):
    reader, writer = await raw(served.port, "\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines)))
    status, headers = await answer_head(reader)
    body = await reader.readexactly(int(headers.get("content-length", 0))) if method != "HEAD" else b""
    writer.close()
    return status, headers, body


@every_closed_call
async def test_a_call_needs_a_key_of_its_scope(route):
    async with serving(keys=KEYS) as served, aiohttp.ClientSession() as http:
        async with http.request(route.method, served.url + place(route)) as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        for caller in KEYS[:4]:
            if caller.has(route.scope):
                continue
            async with http.request(route.method, served.url + place(route), headers=bearer(caller.name)) as answer:
                assert answer.status == 403
                assert f"scope {route.scope}" in await answer.text()


def test_reading_and_using_ask_for_less_than_changing():
    changing = {"POST", "PATCH", "PUT", "DELETE"}
    assert all(route.scope is not None for route in ROUTES if route.method in changing)
    assert all(route.scope is Scope.ADMIN for route in ROUTES if route.method in changing and "/admin/" in route.path)
    assert all(route.scope is Scope.READ for route in ROUTES if route.method == "GET" and "/admin/" in route.path)


async def test_health_is_open_and_what_is_not_there_is_not():
    async with serving(keys=KEYS) as served:
        open_paths = {"/health", "/health/ready", "/openapi.json", "/", "/page/{file}"}
        assert {route.path for route in OPEN} == open_paths
        assert (await call(served, "GET", "/health"))[0] == 200
        for method, path in (("GET", "/nothing"), ("POST", "/health"), ("PUT", "/v1/models"), ("GET", "/admin")):
            assert await call(served, method, path) == (401, "invalid_api_key")
        assert await call(served, "GET", "/nothing", bearer("user")) == (404, "not_found")
        assert await call(served, "POST", "/health", bearer("user")) == (405, "method_not_allowed")


async def test_a_handler_beside_the_table_is_for_admins():
    async def handler(_):
        return web.json_response({})

    async with serving(keys=KEYS, extra=[web.get("/beside", handler)]) as served:
        assert (await call(served, "GET", "/beside"))[0] == 401
        assert (await call(served, "GET", "/beside", bearer("user")))[0] == 403
        assert (await call(served, "GET", "/beside", bearer("boss")))[0] == 200


async def test_without_keys_nothing_is_asked_for_and_any_key_is_passed_over():
    async with serving() as served:
        assert (await call(served, "GET", "/v1/models"))[0] == 200
        assert (await call(served, "GET", "/admin/models", bearer("nobody")))[0] == 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Authorization: Bearer mlxd-user"], 200),
        (["authorization: bEARER   mlxd-user  "], 200),
        (["x-api-key: mlxd-user"], 200),
        (["X-API-KEY:mlxd-user"], 200),
        (["x-api-key: mlxd-user", "Authorization: Bearer mlxd-user"], 200),
        (["x-api-key: mlxd-user", "Authorization: Basic bWU6bWU="], 200),
        (["x-api-key: mlxd-user", "Authorization: Bearer "], 200),
        (["x-api-key: mlxd-user", "Authorization: Bearer mlxd-boss"], 401),
        (["x-api-key: nobody", "Authorization: Bearer mlxd-user"], 401),
        (["Authorization: Bearer nobody", "Authorization: Bearer mlxd-user"], 401),
        (["x-api-key: mlxd-user", "x-api-key: nobody"], 401),
        (["Authorization: Bearer mlxd-user, Bearer mlxd-boss"], 401),
        (["Authorization: Bearer"], 401),
        (["Authorization: Bearer "], 401),
        (["Authorization: "], 401),
        (["Authorization: mlxd-user"], 401),
        (["Authorization: Basic mlxd-user"], 401),
        (["Authorization: Bearermlxd-user"], 401),
        (["x-api-key: "], 401),
        (["x-api-key: mlxd-USER"], 401),
        (["x-api-key: mlxd-user\x00"], 400),
        (["x-api-key: mlxd-us\xe9r"], 401),
        (["x-api-key: \xff\xfe\xed\xa0\x80"], 401),
        (["x-api-key: " + hash_of("mlxd-user")], 401),
        (["x-api-key: " + "a" * 8000], 401),
        (["api-key: mlxd-user"], 401),
        (["Cookie: x-api-key=mlxd-user"], 401),
        (["Proxy-Authorization: Bearer mlxd-user"], 401),
        ([], 401),
    ],
)
async def test_a_key_comes_in_one_of_two_headers_and_is_taken_exactly(lines, status):
    async with serving(keys=KEYS) as served:
        assert (await by_hand(served, *lines))[0] == status


async def test_a_key_in_the_address_is_none():
    async with serving(keys=KEYS) as served:
        for query in ("api_key", "key", "x-api-key", "token"):
            assert (await by_hand(served, path=f"/v1/models?{query}=mlxd-user"))[0] == 401


async def test_other_methods_are_no_way_around():
    async with serving(keys=KEYS) as served:
        assert (await by_hand(served, method="HEAD"))[0] == 401
        assert (await by_hand(served, "x-api-key: mlxd-user", method="HEAD"))[0] == 200
        assert (await by_hand(served, method="OPTIONS"))[0] == 401
        assert (await by_hand(served, "X-HTTP-Method-Override: GET", method="POST", path="/health"))[0] == 401
        for path in ("//v1/models", "/v1/models/", "/v1/../v1/models", "/V1/models", "/health/../v1/models"):
            assert (await by_hand(served, path=path))[0] == 401, path


async def test_a_preflight_needs_no_key_and_what_follows_does():
    server = ServerSettings(cors_origins=("https://app.example",))
    async with serving(keys=KEYS, server=server) as served:
        origin = "Origin: https://app.example"
        asked = (origin, "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: authorization")
        status, headers, _ = await by_hand(served, *asked, method="OPTIONS")
        assert (status, headers["access-control-allow-headers"]) == (204, "authorization")
        assert (await by_hand(served, origin))[0] == 401
        assert (await by_hand(served, origin, "x-api-key: mlxd-user"))[0] == 200


async def test_a_unix_socket_asks_for_a_key_too(tmp_path):
    async with serving(keys=KEYS) as served:
        runner = make_runner(served.application, 1)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "s")).start()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "s"))) as http:
            async with http.get("http://any/v1/models") as answer:
                assert answer.status == 401
            async with http.get("http://any/v1/models", headers=bearer("user")) as answer:
                assert answer.status == 200
        await runner.cleanup()


async def test_wrong_keys_are_answered_all_alike():
    async with serving(keys=KEYS) as served:
        wrong = ("nobody", "mlxd-use", "mlxd-userr", "MLXD-USER", hash_of("mlxd-user"), "x" * 4000)
        answers = [await by_hand(served, "X-Request-Id: r", f"x-api-key: {secret}") for secret in wrong]
        assert len({(status, body) for status, _, body in answers}) == 1
        assert {headers["content-length"] for _, headers, _ in answers} == {str(len(answers[0][2]))}


async def test_no_key_is_told_of_before_a_body_is_read():
    async with serving(keys=KEYS) as served:
        head = "POST /v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 1000000"
        reader, writer = await raw(served.port, head, b"{")
        assert (await within(answer_head(reader)))[0] == 401
        writer.close()


# -- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m", "M", "gpt-4o", "GPT-4o", "m-cold", "m:latest", "gpt-4o:latest"])
async def test_a_model_of_others_is_refused_by_any_of_its_names(name):
    async with serving(keys=KEYS) as served:
        status, text = await ask(served, hello(model=name), **bearer("embed"))
        error = json.loads(text)["error"]
        assert (status, error["code"], error["param"]) == (403, "forbidden", "model")
        assert (await call(served, "GET", f"/v1/models/{name}", bearer("embed")))[0] == 403


NAMING = [route for route in ROUTES if route.scope is Scope.INFER and "model" in (route.example or {})]


@pytest.mark.parametrize("route", NAMING, ids=lambda route: f"{route.method} {route.name}")
async def test_every_call_that_names_a_model_is_held_to_those_of_the_key(route):
    async with serving(keys=KEYS) as served, aiohttp.ClientSession(served.url, headers=bearer("embed")) as http:
        for name in ("m", "GPT-4o", "m-cold:latest"):
            body = {**route.example, "model": name}
            async with http.request(route.method, route.path, json=body) as answer:
                assert (answer.status, "none of those of this key" in await answer.text()) == (403, True)
    assert served.registry.keys == []


def test_every_facade_is_among_them():
    assert {route.path for route in NAMING} >= {CHAT, "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"}


LISTS = [route for route in ROUTES if route.scope is Scope.INFER and route.method == "GET" and "{" not in route.path]


@pytest.mark.parametrize("route", LISTS, ids=lambda route: route.name)
async def test_no_list_tells_of_models_of_others(route):
    async with (
        serving(keys=KEYS) as served,
        aiohttp.ClientSession(served.url, headers=bearer("embed")) as http,
        http.get(route.path) as answer,
    ):
        text = await answer.text()
        assert answer.status == 200
        assert "gpt-4o" not in text
        assert "m-cold" not in text


async def test_the_default_model_is_no_way_around():
    async with serving(keys=KEYS, models=ModelsSettings(default="m")) as served:
        assert (await call(served, "POST", CHAT, bearer("embed"), {**hello(), "model": ""}))[0] == 403
        body = {"messages": hello()["messages"]}
        assert (await call(served, "POST", CHAT, bearer("embed"), body))[0] == 403


async def test_the_default_model_of_others_is_not_named():
    async with serving(keys=KEYS, models=ModelsSettings(default="gpt-4o")) as served:
        body = {"messages": hello()["messages"]}
        async with (
            aiohttp.ClientSession() as http,
            http.post(served.url + CHAT, headers=bearer("embed"), json=body) as answer,
        ):
            said = (await answer.json())["error"]["message"]
    assert said == "the default model is none of those of this key: org/*"


async def test_lists_have_what_the_key_may_use():
    async with serving(keys=KEYS) as served:
        assert await names(served, "/v1/models", bearer("user")) == ["m", "org/embed", "gpt-4o", "m-cold"]
        assert await names(served, "/v1/models", bearer("embed")) == ["org/embed"]
        assert await names(served, "/v1/models", bearer("cold")) == ["m-cold"]
        assert await names(served, "/v1/models", bearer("half")) == ["m", "gpt-4o", "m-cold"]
        assert (await call(served, "GET", "/v1/models/embed", bearer("embed")))[0] == 200


async def test_suggestions_are_of_what_the_key_may_use():
    async with serving(keys=KEYS) as served:
        for caller, suggestions in (("user", ["org/embed"]), ("half", []), ("embed", ["org/embed"])):
            status, text = await ask(served, hello(model="org/embedd"), **bearer(caller))
            error = json.loads(text)["error"]
            assert (status, error["details"]) == (404, {"suggestions": suggestions})
            assert ("org/embed'" in error["message"] or "org/embed?" in error["message"]) == bool(suggestions)


async def test_a_short_name_is_ambiguous_among_what_the_key_may_use():
    specs = (ModelSpec("org/x", Path("/1")), ModelSpec("two/x", Path("/2")))
    async with serving(keys=(*KEYS, key("none", models=("q",)))) as served:
        served.services.live.swap(served.services.settings, live(Settings(), specs).catalog)
        for caller, suggestions in (("user", ["org/x", "two/x"]), ("embed", ["org/x"]), ("none", [])):
            status, text = await ask(served, hello(model="x"), **bearer(caller))
            assert (status, json.loads(text)["error"]["details"]) == (404, {"suggestions": suggestions})
            assert ("two/x" in text) == (caller == "user")


async def test_a_preset_alone_does_not_open_its_model():
    async with serving(keys=KEYS) as served:
        assert (await ask(served, hello(model="m-cold"), CHAT, last("hi"), **bearer("cold")))[0] == 200
        assert (await ask(served, hello(model="m"), **bearer("cold")))[0] == 403
        for method, path in (("POST", "load"), ("POST", "unload"), ("DELETE", "load")):
            assert await call(served, method, f"/admin/models/m-cold/{path}", bearer("cold")) == (403, "forbidden")
        assert await call(served, "GET", "/admin/models/m-cold", bearer("cold")) == (403, "forbidden")


async def test_a_key_for_some_models_is_held_to_them_in_admin_calls():
    async with serving(keys=KEYS) as served:
        assert (await call(served, "GET", "/admin/models/m", bearer("half")))[0] == 200
        assert await names(served, "/admin/models", bearer("half")) == ["m"]
        for method, path in (
            *(("POST", f"/admin/models/{name}/unload") for name in ("embed", "org/embed", "ORG/Embed")),
            ("PATCH", "/admin/models/embed"),
            ("GET", "/admin/explain/embed"),
        ):
            assert await call(served, method, path, bearer("half")) == (403, "forbidden")


async def test_a_plan_names_only_models_that_the_key_may_use():
    both = ("org/embed", "m")
    plan = Plan("m", Verdict.WAITS, 1, 2, both, both, tuple(Blocker(name, "pinned") for name in both))
    async with serving(keys=KEYS) as served, aiohttp.ClientSession(served.url) as http:
        served.registry.explain = lambda _name, *, operator=False: plan
        for caller, names in (("boss", ["org/embed", "m"]), ("half", ["m"])):
            for method, path in (("GET", "/admin/explain/m"), ("POST", "/admin/models/m/load")):
                body = {"dry_run": True} if method == "POST" else None
                async with http.request(method, path, json=body, headers=bearer(caller)) as answer:
                    shown = await answer.json()
                assert [shown["evicts"], shown["waits_for"], [each["id"] for each in shown["blocked_by"]]] == [
                    names
                ] * 3


async def test_readiness_tells_nobody_without_a_key_of_models():
    stuck = SimpleNamespace(stats=lambda: SimpleNamespace(heartbeat_age_s=1000.0))
    for keys, says in ((KEYS, "an engine has not finished"), ((), "the engine of m-stuck has not finished")):
        async with serving(keys=keys) as served, aiohttp.ClientSession(served.url) as http:
            served.registry.loaded = {"m-stuck": stuck}
            async with http.get("/health/ready") as answer:
                assert (answer.status, says in (await answer.json())["reasons"][0]) == (503, True)


async def test_calls_about_the_whole_daemon_need_a_key_for_all_models():
    whole = [route for route in CLOSED if route.scope is not Scope.INFER and "/{id}" not in route.name]
    async with serving(keys=KEYS) as served:
        for route in whole:
            if not route.about_models:
                assert await call(served, route.method, place(route), bearer("half")) == (403, "forbidden"), route.name


# -- requests ----------------------------------------------------------------------------------------------------


async def test_a_request_shows_its_key_and_is_ended_by_its_own_key_or_an_admins():
    async with serving(keys=KEYS) as served:
        for caller in ("user", "boss"):
            asking = asyncio.ensure_future(ask(served, hello(), **bearer("user"), **{"X-Request-Id": f"of-{caller}"}))
            await within(served.engine.arrivals.get())
            [view] = served.services.running.views(())
            assert view.key == "user"
            path = f"/v1/requests/of-{caller}"
            for stranger in ("other", "embed", "half"):
                assert await call(served, "DELETE", path, bearer(stranger)) == (404, "request_not_found")
            assert (await call(served, "DELETE", path, bearer("watch")))[0] == 403
            assert (await call(served, "DELETE", path, bearer(caller)))[0] == 200
            assert (await within(asking))[0] == 200


async def test_a_waiting_request_has_its_key():
    async with serving(keys=KEYS) as served:
        served.registry.open.clear()
        asking = asyncio.ensure_future(ask(served, hello(), CHAT, last("hi"), **bearer("user")))
        await within(served.registry.waits.get())
        assert served.registry.keys == ["user"]
        served.registry.open.set()
        assert (await within(asking))[0] == 200


async def test_a_feed_ends_with_its_key():
    async with (
        serving(keys=KEYS) as served,
        aiohttp.ClientSession(served.url) as http,
        http.get("/admin/events", headers=bearer("watch")) as feed,
    ):
        assert await within(feed.content.readuntil(b"\n\n"))
        await served.services.keys.look()  # its file is not there any more
        served.services.feed.publish("model", {"id": "m"})
        assert await within(feed.content.read()) == b""


async def test_a_feed_that_nobody_needed_a_key_for_ends_with_the_first_one(tmp_path):
    file = tmp_path / "keys.toml"
    async with (
        serving(keys=KeyRing(file)) as served,
        aiohttp.ClientSession(served.url) as http,
        http.get("/admin/events") as feed,
    ):
        assert await within(feed.content.readuntil(b"\n\n"))
        add_key(file, KEYS[0])
        await served.services.keys.look()
        served.services.feed.publish("model", {"id": "m"})
        assert await within(feed.content.read()) == b""


# -- the log -----------------------------------------------------------------------------------------------------


async def test_attempts_are_told_in_a_few_lines_and_no_secret_is():
    async with serving(keys=KEYS) as served:
        with capture_logs() as logs:
            for _ in range(50):
                assert (await call(served, "POST", CHAT, bearer("nobody"), hello()))[0] == 401
            await call(served, "GET", "/v1/models", bearer("user"))
            await call(served, "GET", "/admin/models", bearer("user"))
            await call(served, "GET", "/nothing", bearer("boss"))
        loud = [line for line in logs if line["log_level"] != "debug"]
        assert [line["event"] for line in loud] == ["auth.refused", "request.refused", "request.refused"]
        assert (loud[0]["address"], loud[0]["attempts"]) == ("127.0.0.1", 1)
        assert "mlxd-" not in repr(logs)


async def test_further_attempts_are_counted_and_many_addresses_share_a_line():
    attempts = FailedAttempts()
    with capture_logs() as logs:
        for _ in range(3):
            for number in range(MAX_ADDRESSES + 5):
                attempts.note(f"10.0.0.{number}", InvalidApiKey("m"))
        attempts.tell()
        attempts.tell()
    told = {(line["address"], line["attempts"]) for line in logs}
    assert len(logs) == 2 * (MAX_ADDRESSES + 1)
    assert told == {(f"10.0.0.{number}", count) for number in range(MAX_ADDRESSES) for count in (1, 2)} | {
        (OTHERS, 1),
        (OTHERS, 14),
    }


async def test_each_reason_is_told_by_itself_and_the_unix_socket_has_no_address():
    attempts = FailedAttempts()
    with capture_logs() as logs:
        for error in (InvalidApiKey("m"), HostNotAllowed("host x"), InvalidApiKey("m")):
            attempts.note("", error)
        attempts.tell()
    told = [(line["code"], line["attempts"], line.get("message")) for line in logs]
    assert told == [("invalid_api_key", 1, "m"), ("host_not_allowed", 1, "host x"), ("invalid_api_key", 1, None)]
    assert {line["address"] for line in logs} == {"unix socket"}


@pytest.mark.virtual_time
async def test_the_line_about_those_that_followed_is_of_no_request():
    attempts, told = FailedAttempts(), []
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, lambda *line: told.append(line[2]) or ""])
    try:
        with structlog.contextvars.bound_contextvars(request_id="r"):
            attempts.note("10.0.0.1", InvalidApiKey("m"))
            attempts.note("10.0.0.1", InvalidApiKey("m"))
        await passes(WINDOW)
    finally:
        structlog.reset_defaults()
    assert [line.get("request_id") for line in told] == ["r", None]


FLOODS = [
    ("GET /v1/models HTTP/1.1\nHost: " + "e" * 8000, 403),
    ("POST /v1/models HTTP/1.1\nHost: localhost\nContent-Length: 0\nOrigin: http://" + "e" * 8000, 403),
    ("POST /" + "e" * 8000 + " HTTP/1.1\nHost: evil\nContent-Length: 0", 403),
    ("GET /v1/models HTTP/1.1\nHost: localhost\nExpect: " + "e" * 8000, 400),
    ("NONSENSE", 400),
]


@pytest.mark.parametrize(("head", "status"), FLOODS, ids=["host", "origin", "path", "expect", "nonsense"])
@pytest.mark.parametrize("keys", [KEYS, ()], ids=["keys", "open"])
async def test_a_flood_of_what_is_turned_away_fills_no_log(head, status, keys):
    with capture_logs() as logs:
        async with serving(keys=keys) as served:
            for _ in range(5):
                reader, writer = await raw(served.port, head)
                assert (await within(answer_head(reader)))[0] == status
                writer.close()
    loud = [line for line in logs if line["log_level"] != "debug"]
    assert [(line["event"], line["attempts"]) for line in loud] == [("auth.refused", 1), ("auth.refused", 4)]
    assert len(repr(loud)) < 1000
