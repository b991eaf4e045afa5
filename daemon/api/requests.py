"""DELETE /v1/requests/{request_id}: end a request and keep what it generated."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api.refusals import RequestNotFound
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.running import RunningRequests
from mlxd.daemon.api.services import services_of

# Object ids are a prefix and the request's id; a client that knows only its object's id may send that.
OBJECT_PREFIXES = ("chatcmpl-", "cmpl-")


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("DELETE", "/v1/requests/{request_id}", cancel, Scope.INFER)]


async def cancel(request: web.Request) -> web.Response:
    """Cancel one request; its reader gets what was generated. Raises RequestNotFound."""
    request_id = request.match_info["request_id"]
    if not cancel_request(services_of(request).running, request_id):
        raise RequestNotFound(f"no request {request_id} is live; GET /admin/requests lists those that are")
    return web.json_response({"id": request_id, "cancelled": True})


def cancel_request(running: RunningRequests, request_id: str) -> bool:
    """Cancel by request id or by the id of the object that answers it. False when there is no such request."""
    names = [request_id, *(request_id.removeprefix(p) for p in OBJECT_PREFIXES if request_id.startswith(p))]
    return any(running.cancel(name) for name in names)
