"""GET /health and /health/ready. Both answer from memory and never wait for an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator

from aiohttp import web

from mlxd.daemon.api.admin_objects import Health, Readiness
from mlxd.daemon.api.routes import Route
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.settings import SupervisionSettings

# Seconds that the event loop and the planner may be late. Above that everybody waits.
LATE = 5.0
# Seconds that a step may take where no engine is ever given up; one prefill chunk may take long.
SLOW_STEP = 60.0
# A measurement of memory counts until so many should have followed, and for so many seconds at least.
_MISSED = 3
_MEASURED_AGO = 10.0


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
    """200 while requests are admitted and everything makes progress, else 503 with the reasons."""
    reasons = list(_reasons(services_of(request)))
    status = "ready" if not reasons else "not_ready"
    return web.json_response({"status": status, "reasons": reasons}, status=503 if reasons else 200)


def slow_step(supervision: SupervisionSettings) -> float:
    """Seconds without a finished step after which an engine makes no progress: some time before it is given up."""
    return SLOW_STEP if supervision.hang_timeout is None else supervision.hang_timeout / 2


def _reasons(services: Services) -> Iterator[str]:
    if services.registry.closing:
        yield "the daemon is shutting down"
    if (lag := services.loop_lag()) > LATE:
        yield f"the event loop is late by {lag:.0f} s"
    if (overdue := services.registry.overdue) > LATE:
        yield f"the planner is late by {overdue:.0f} s"
    yield from _memory_reasons(services)
    yield from _engine_reasons(services)


def _memory_reasons(services: Services) -> Iterator[str]:
    latest = services.guard.latest
    if latest is None:
        yield "memory was not measured yet"
        return
    age = services.clock() - latest.at
    if age > max(_MEASURED_AGO, _MISSED * services.settings.memory.poll_interval):
        yield f"memory could not be measured for {age:.0f} s"


def _engine_reasons(services: Services) -> Iterator[str]:
    bound = slow_step(services.settings.supervision)
    for name, engine in services.registry.engines().items():
        age = engine.stats().heartbeat_age_s
        if age >= bound:
            # where keys are asked for, this call is open to those who may not know of any model
            engine_named = f"the engine of {name}" if services.keys.is_open else "an engine"
            yield f"{engine_named} has not finished a step for {age:.0f} s"
