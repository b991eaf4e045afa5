"""GET /health and /health/ready. Both answer from memory and never wait for an engine."""

from __future__ import annotations

import os

from aiohttp import web

from mlxd.daemon.api.admin_objects import Health, Readiness
from mlxd.daemon.api.routes import Route
from mlxd.daemon.api.services import Services, services_of

# Seconds without a finished step after which an engine counts as stuck; one prefill chunk may take long.
STUCK_AFTER = 120.0


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route("GET", "/health", health, None, answer=Health),
        Route("GET", "/health/ready", ready, None, answer=Readiness, also={503: Readiness}),
    ]


async def health(request: web.Request) -> web.Response:
    """The process is up."""
    services = services_of(request)
    uptime = services.wall_clock() - services.started
    return web.json_response(
        {"status": "ok", "version": services.version, "pid": os.getpid(), "uptime_s": round(uptime, 3)}
    )


async def ready(request: web.Request) -> web.Response:
    """200 while requests are admitted and every engine makes progress, else 503 with the reasons."""
    reasons = _reasons(services_of(request))
    status = "ready" if not reasons else "not_ready"
    return web.json_response({"status": status, "reasons": reasons}, status=503 if reasons else 200)


def _reasons(services: Services) -> list[str]:
    reasons = ["the daemon is shutting down"] if services.registry.closing else []
    for name, engine in services.registry.engines().items():
        age = engine.stats().heartbeat_age_s
        if age > STUCK_AFTER:
            # where keys are asked for, this call is open to those who may not know of any model
            engine_named = f"the engine of {name}" if services.keys.is_open else "an engine"
            reasons.append(f"{engine_named} has not finished a step for {age:.0f} s")
    return reasons
