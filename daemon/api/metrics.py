"""GET /metrics, for Prometheus."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("GET", "/metrics", metrics, Scope.READ, answer=str, answer_type="text/plain")]


async def metrics(request: web.Request) -> web.Response:
    """Every metric in Prometheus's text format."""
    return web.Response(body=services_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})
