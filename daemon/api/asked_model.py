"""Which model a request wants, and how long it waits for it."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api.caller import usable_meaning
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.services import services_of
from mlxd.daemon.units import parse_duration
from mlxd.registry.names import Resolved

MAX_WAIT_HEADER = "X-Mlxd-Max-Wait"


def resolve_model(request: web.Request, name: str | None) -> Resolved:
    """What a request's model name means. Raises InvalidField when it names none, and what `usable_meaning` raises."""
    services = services_of(request)
    default = services.settings.models.default or ""
    if not name and not default:
        raise InvalidField("model is required, since models.default is not set; GET /v1/models lists them", "model")
    return usable_meaning(request, name, default)


def max_wait_of(request: web.Request) -> float | None:
    """Seconds that the client waits for its model at most, None if it does not say. Raises InvalidField.

    A client may shorten `residency.queue_timeout`, not lengthen it.
    """
    queue_timeout = services_of(request).settings.residency.queue_timeout
    header = request.headers.get(MAX_WAIT_HEADER)
    if header is None:
        return None
    try:
        seconds = parse_duration(header)
    except ValueError as error:
        raise InvalidField(f"{MAX_WAIT_HEADER}: {error}", MAX_WAIT_HEADER) from None
    return queue_timeout if seconds is None else min(seconds, queue_timeout)
