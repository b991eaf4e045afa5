"""Puts the HTTP application together from its parts."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api import admin, chat, completions, events, explain, health, metrics, models, reload, requests
from mlxd.daemon.api.middleware import add_headers, answer_errors, check_sender, name_requests
from mlxd.daemon.api.services import SERVICES, Services


def make_application(services: Services) -> web.Application:
    """All routes over these services. To be served with `handler_cancellation`, which aborts for lost clients."""
    application = web.Application(middlewares=[name_requests, answer_errors, check_sender])
    application[SERVICES] = services
    application.on_response_prepare.append(add_headers)
    application.on_shutdown.append(events.close_feed)
    for part in (chat, completions, models, requests, admin, reload, events, explain, health, metrics):
        application.add_routes(part.routes())
    return application
