"""Puts the HTTP application together from its parts."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api import admin, chat, completions, health, metrics, models, requests
from mlxd.daemon.api.middleware import add_headers, answer_errors, check_sender, name_requests
from mlxd.daemon.api.services import SERVICES, Services


def make_application(services: Services) -> web.Application:
    """All routes over these services. To be served with `handler_cancellation`, which aborts for lost clients."""
    application = web.Application(
        middlewares=[name_requests, answer_errors, check_sender], client_max_size=services.settings.server.max_body
    )
    application[SERVICES] = services
    application.on_response_prepare.append(add_headers)
    for part in (chat, completions, models, requests, admin, health, metrics):
        application.add_routes(part.routes())
    return application
