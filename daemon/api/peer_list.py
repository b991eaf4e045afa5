"""GET /admin/peers: who answers for this daemon, and who is left alone."""

from __future__ import annotations

import math

from aiohttp import web

from mlxd.daemon.api.admin_objects import Listed, PeerObject
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.daemon.peers.peer import Peer


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("GET", "/admin/peers", list_peers, Scope.READ, answer=Listed[PeerObject])]


async def list_peers(request: web.Request) -> web.Response:
    """All peers, in the order of the configuration. Nothing is asked of them for it."""
    services = services_of(request)
    now = services.clock()
    return json_answer(Listed([_peer_object(peer, now) for peer in services.peers.all()]))


def _peer_object(peer: Peer, now: float) -> PeerObject:
    wait = None if peer.is_up or math.isinf(peer.breaker.retry_at) else max(0.0, peer.breaker.retry_at - now)
    return PeerObject(
        name=peer.name,
        url=peer.settings.url,
        priority=peer.settings.priority,
        state="up" if peer.is_up else "down",
        error=peer.error,
        retry_in_s=wait,
        is_mlxd=peer.listing.is_mlxd,
        models=sorted(filter(peer.may_have, peer.models)),
        requests=peer.in_flight,
        first_token_s=peer.first_token_s,
    )
