"""DELETE /v1/requests/{request_id}: end a request and keep what it generated."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api.admin_objects import Cancelled
from mlxd.daemon.api.caller import caller_of
from mlxd.daemon.api.refusals import RequestNotFound
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.running import RunningRequests
from mlxd.daemon.api.services import services_of

# Object ids are a prefix and the request's id; a client that knows only its object's id may send that.
OBJECT_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("DELETE", "/v1/requests/{request_id}", cancel, Scope.INFER, answer=Cancelled)]


async def cancel(request: web.Request) -> web.Response:
    """Cancel one request; its reader gets what was generated. Raises RequestNotFound."""
    request_id = request.match_info["request_id"]
    if not cancel_request(services_of(request).running, request_id, owner_of(request)):
        raise RequestNotFound(f"no request {request_id} is live; GET /admin/requests lists those that are")
    return web.json_response({"id": request_id, "cancelled": True})


def owner_of(request: web.Request) -> str | None:
    """The name of the key to whose requests the caller is held; None for whoever may end all of them."""
    caller = caller_of(request)
    return None if caller is None or (caller.has(Scope.ADMIN) and not caller.models) else caller.name


def cancel_request(running: RunningRequests, request_id: str, owner: str | None) -> bool:
    """Cancel by request id or by the id of the object that answers it, for an `owner` only what came with that key.

    False when there is no such request.
    """
    names = [request_id, *(request_id.removeprefix(p) for p in OBJECT_PREFIXES if request_id.startswith(p))]
    return any(running.cancel(name, owner) for name in names)
