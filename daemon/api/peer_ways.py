"""Who can answer a request: this daemon, and each peer that has its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from msgspec import Struct

from mlxd.daemon.api.caller import may_use_there
from mlxd.daemon.api.refusals import UnsupportedCapability
from mlxd.daemon.api.services import services_of
from mlxd.daemon.peers.peer import OPENAI_CALLS, Peer
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.names import AmbiguousModel
from mlxd.registry.peer_choice import Option, Standing, preference
from mlxd.registry.states import State

_LATEST = ":latest"


class Asked(Struct):
    """What of a body says who may answer. All but the model is about what is kept of responses."""

    model: str | None = None
    store: Any = None
    background: Any = None
    conversation: Any = None
    previous_response_id: Any = None

    @property
    def kept(self) -> str | None:
        """The field by which it needs a response that is kept, or wants its own kept; a peer's cannot be read here."""
        return next((field for field in _KEPT if getattr(self, field)), None)


_KEPT = tuple(field for field in Asked.__struct_fields__ if field != "model")


@dataclass(frozen=True, slots=True)
class Way:
    """Somebody who can answer: a peer with the name of the model there, None for this daemon."""

    option: Option
    peer: Peer | None = None
    model: str = ""


class Ways:
    """Those for a `call` (its path) that names a model so; `kept` is a field that keeps it from peers."""

    def __init__(self, request: web.Request, name: str, call: str, kept: str | None = None) -> None:
        self._request = request
        self._call = call
        self._name = name
        self._there = name.removesuffix(_LATEST)
        self._kept = kept
        self._services = services_of(request)
        self._peers = self._services.peers

    def now(self) -> list[Way]:
        """The one to ask first in front. Raises UnsupportedCapability when those who have it cannot do that."""
        here = self.here()
        peers = list(filter(self._may_use, self._explicit() if here is None else self._listing()))
        if peers and self._kept is not None:
            if here is None:
                raise self._not_kept(self._kept)
            peers = []
        ways = peers if here is None else [Way(here), *peers]
        return sorted(ways, key=lambda way: preference(way.option))

    def here(self) -> Option | None:
        """What this daemon offers; None if it knows no such model. A name that fits several is for it to refuse."""
        try:
            meaning = self._services.names.find(self._name)
            model = None if meaning is None else self._services.registry.model(meaning.model)
        except AmbiguousModel:
            return Option(None, Standing.READY)
        except ModelRemoved:
            return None
        if model is None:
            return None
        standing = Standing.READY if model.state == State.READY else Standing.LOADS_HERE
        return Option(None, standing, waiting=model.waiting)

    def knowers(self) -> list[Peer]:
        """Peers that had such a model when they last told, or have not told yet."""
        named = self._peers.named(self._name)
        if named is not None:
            return [named[0]]
        peers = self._peers.all()
        return [peer for peer in peers if peer.may_have(self._there) and (peer.is_new or self._there in peer.models)]

    def _explicit(self) -> Iterator[Way]:
        """What `peer/name` means, whether the peer lists it or not; else as any name."""
        named = self._peers.named(self._name)
        if named is None:
            yield from self._listing()
            return
        peer, model = named
        if not peer.is_up or not peer.may_have(model):
            return
        if not peer.takes_call(self._call):
            calls = ", ".join(sorted(OPENAI_CALLS))
            raise UnsupportedCapability(f"peer {peer.name} is no mlxd, and takes only {calls}", "model")
        yield Way(peer.option(model) or peer.unlisted(), peer, model)

    def _listing(self) -> Iterator[Way]:
        for peer in self._peers.all():
            option = peer.option(self._there)
            if option is not None and peer.takes_call(self._call):
                yield Way(option, peer, self._there)

    def _may_use(self, way: Way) -> bool:
        assert way.peer is not None, "only peers are asked about"
        return may_use_there(self._request, way.peer, way.model)

    def _not_kept(self, field: str) -> UnsupportedCapability:
        message = f"{field}: model {self._name} is on another machine, and responses of it are not kept here"
        return UnsupportedCapability(f"{message}; send the whole conversation, with store false", field)
