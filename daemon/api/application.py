"""Puts the HTTP application together from its parts."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api import admin, events, explain, health, metrics, reload, requests
from mlxd.daemon.api.error_shapes import SHAPES
from mlxd.daemon.api.middleware import add_headers, answer_errors, check_sender, name_requests
from mlxd.daemon.api.openai import chat, completions, models
from mlxd.daemon.api.routes import ROUTES
from mlxd.daemon.api.services import SERVICES, Services

PARTS = (chat, completions, models, requests, admin, reload, events, explain, health, metrics)


def make_application(services: Services) -> web.Application:
    """All routes over these services. To be served with `handler_cancellation`, which aborts for lost clients."""
    application = web.Application(middlewares=[name_requests, answer_errors, check_sender])
    application[SERVICES] = services
    application[SHAPES] = ()
    application[ROUTES] = {(route.method, route.path): route for part in PARTS for route in part.routes()}
    application.on_response_prepare.append(add_headers)
    application.on_shutdown.append(events.close_feed)
    application.add_routes([route.definition() for part in PARTS for route in part.routes()])
    return application
