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
    """Every metric in Prometheus's text format; those of models that there are no more are forgotten first."""
    services = services_of(request)
    there = {f"{peer.name}/{model}" for peer in services.peers.all() for model in peer.models}
    services.metrics.forget(all_but={spec.name for spec in services.live.catalog.specs} | there)
    return web.Response(body=services.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})
