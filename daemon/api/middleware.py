"""What happens around every handler: a request id, errors as JSON, and the checks of Host and Origin."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Iterable

import structlog
from aiohttp import web

from mlxd.daemon.api.error_shapes import shape_of, shaped
from mlxd.daemon.api.errors import explain
from mlxd.daemon.api.failed_attempts import ATTEMPTS
from mlxd.daemon.api.origins import host_is_allowed, origin_is_allowed, origin_is_configured
from mlxd.daemon.api.refusals import (
    ApiError,
    BodyTooLarge,
    HostNotAllowed,
    MethodNotAllowed,
    NotFound,
    OriginNotAllowed,
    TurnedAway,
    UnsupportedMediaType,
)
from mlxd.daemon.api.routes import Handler
from mlxd.daemon.api.services import services_of

log = structlog.stdlib.get_logger(__name__)

REQUEST_ID_HEADER = "X-Request-Id"
IGNORED_HEADER = "X-Mlxd-Ignored"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
EXPOSED = "X-Request-Id, Retry-After, X-Should-Retry, X-Mlxd-Ignored"
METHODS = "GET, HEAD, POST, PATCH, DELETE"
PREFLIGHT_SECONDS = "600"
SHOWN = 200
"""Characters of a header that a refusal repeats."""

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_-]+(?: ?, ?[A-Za-z0-9_-]+)*")
_ID = web.RequestKey("request_id", str)
_IGNORED = web.RequestKey("ignored", list[str])
_TURNED_AWAY = web.RequestKey("turned_away", bool)


def request_id_of(request: web.BaseRequest) -> str:
    """The id of this request: the caller's, if it sent a sane one."""
    if _ID not in request:
        sent = request.headers.get(REQUEST_ID_HEADER, "")
        request[_ID] = sent if _SANE_ID.fullmatch(sent) else f"req-{secrets.token_hex(12)}"
    return request[_ID]


def note_ignored(request: web.Request, names: Iterable[str]) -> None:
    """Say in the answer's head which fields of the request are passed over; names of known fields only."""
    ignored = list(dict.fromkeys([*request.get(_IGNORED, []), *names]))
    request[_IGNORED] = ignored


@web.middleware
async def name_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Bind the request id to everything that is logged for this request, and log how it was answered."""
    started = time.monotonic()
    with structlog.contextvars.bound_contextvars(request_id=request_id_of(request)):
        response = await handler(request)
        note = log.debug if request.method in READING or _TURNED_AWAY in request else log.info
        seconds = round(time.monotonic() - started, 3)
        note("http.request", method=request.method, path=request.path, status=response.status, seconds=seconds)
        return response


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an answer. A cancelled handler has nobody to answer."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:  # noqa: PLR2004 - redirects are answers
            raise
        return _answer(request, _refusal(error))
    except TurnedAway as error:
        request[_TURNED_AWAY] = True
        request.app[ATTEMPTS].note(request.remote, error)
        return _answer(request, error)
    # The edge of the daemon: what the table does not know is a bug, logged with its traceback and answered as 500.
    except Exception as error:  # noqa: BLE001
        return _answer(request, error)


def _answer(request: web.Request, error: Exception) -> web.Response:
    request_id = request_id_of(request)
    answer = explain(error, request_id)
    services_of(request).metrics.traffic.refused(answer.code)
    return shaped(answer, request_id, shape_of(request))


@web.middleware
async def check_sender(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse foreign Host names and changes from other sites; answer preflights of configured origins.

    Raises HostNotAllowed and OriginNotAllowed.
    """
    server = services_of(request).settings.server
    if _is_unix(request):
        return await handler(request)  # no browser gets here, and its Host header means nothing
    hosts = request.headers.getall("Host", [])
    if len(hosts) > 1 or (hosts and hosts[0] and not host_is_allowed(hosts[0], server)):
        raise HostNotAllowed(f"host {', '.join(hosts)[:SHOWN]} is not served here; add it to server.allowed_hosts")
    origin = request.headers.get("Origin")
    if origin is None:
        return await handler(request)
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        if not origin_is_configured(origin, server):
            raise _foreign(origin)
        return _preflight(request)
    if request.method not in READING and not origin_is_allowed(origin, hosts[0] if hosts else None, server):
        raise _foreign(origin)
    return await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer, streams too: the request id, and CORS for configured origins."""
    response.headers[REQUEST_ID_HEADER] = request_id_of(request)
    ignored = request.get(_IGNORED)
    if ignored:
        response.headers[IGNORED_HEADER] = ", ".join(ignored)
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    server = services_of(request).settings.server
    if server.cors_origins:
        response.headers["Vary"] = "Origin"
    origin = request.headers.get("Origin")
    if origin is not None and origin_is_configured(origin, server):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED


def _preflight(request: web.Request) -> web.Response:
    headers = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": PREFLIGHT_SECONDS}
    wanted = request.headers.get("Access-Control-Request-Headers", "")
    if _HEADER_NAMES.fullmatch(wanted):
        headers["Access-Control-Allow-Headers"] = wanted
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


def _foreign(origin: str) -> OriginNotAllowed:
    return OriginNotAllowed(f"pages of {origin[:SHOWN]} may not use this daemon; add the origin to server.cors_origins")


def _is_unix(request: web.Request) -> bool:
    own = request.transport.get_extra_info("socket") if request.transport is not None else None
    return own is not None and own.family == socket.AF_UNIX


def _refusal(error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPNotFound():
            return NotFound("there is nothing at this path; inference is under /v1, operation under /admin")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return MethodNotAllowed(f"{error.method} is not allowed here; use {allowed}", headers={"Allow": allowed})
        case web.HTTPRequestEntityTooLarge():
            return BodyTooLarge("the body is larger than server.max_body allows; send less or raise it")
        case web.HTTPUnsupportedMediaType():
            return UnsupportedMediaType("expected a body of type application/json")
        case _:
            return ApiError(error.reason or "the request was refused")
