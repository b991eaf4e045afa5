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
from mlxd.daemon.peers.listing import is_sane
from mlxd.daemon.peers.peer import OPENAI_CALLS, Peer
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.names import AmbiguousModel
from mlxd.registry.peer_choice import Option, Standing, preference
from mlxd.registry.states import State

# These stream unless they are told not to.
_STREAMING = frozenset({"/api/chat", "/api/generate"})


class Asked(Struct):
    """What of a body says who may answer, and how. All but `model` and `stream` is about what is kept of responses."""

    model: str | None = None
    stream: Any = None
    store: Any = None
    background: Any = None
    conversation: Any = None
    previous_response_id: Any = None

    @property
    def kept(self) -> str | None:
        """The field by which it needs a response that is kept, or wants its own kept; a peer's cannot be read here."""
        return next((field for field in _KEPT if getattr(self, field)), None)

    def streams(self, call: str) -> bool:
        """Whether the answer is to be streamed."""
        return self.stream is True or (self.stream is None and call in _STREAMING)


_KEPT = ("store", "background", "conversation", "previous_response_id")


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
        self._kept = kept
        self._services = services_of(request)
        self._peers = self._services.peers

    def now(self) -> list[Way]:
        """The one to ask first in front. Raises UnsupportedCapability when those who have it cannot do that."""
        here = self.here()
        peers = list(self._explicit() if here is None else self._listing())
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
        """Peers that the caller may ask for it, and that had it when they last told, or have not told yet."""
        named = self._named()
        if named is not None:
            return [named[0]]
        found = ((peer, peer.listing.called(self._name)) for peer in self._peers.all())
        return [peer for peer, model in found if self._may_ask(peer, model or self._name) and (model or peer.is_new)]

    def _named(self) -> tuple[Peer, str] | None:
        """What `peer/name` means, if it is the caller's to use."""
        named = self._peers.named(self._name)
        return named if named is not None and is_sane(named[1]) and self._may_ask(*named) else None

    def _explicit(self) -> Iterator[Way]:
        """What `peer/name` means, whether the peer lists it or not; else as any name."""
        named = self._named()
        if named is None:
            yield from self._listing()
            return
        peer, asked = named
        model = peer.listing.called(asked) or asked
        if not peer.is_up:
            return
        if not peer.takes_call(self._call):
            calls = ", ".join(sorted(OPENAI_CALLS))
            raise UnsupportedCapability(f"peer {peer.name} is no mlxd, and takes only {calls}", "model")
        yield Way(peer.option(model), peer, model)

    def _listing(self) -> Iterator[Way]:
        for peer in self._peers.all():
            model = peer.listing.called(self._name)
            if model is not None and peer.is_up and self._may_ask(peer, model) and peer.takes_call(self._call):
                yield Way(peer.option(model), peer, model)

    def _may_ask(self, peer: Peer, model: str) -> bool:
        return peer.may_have(model) and may_use_there(self._request, peer, model)

    def _not_kept(self, field: str) -> UnsupportedCapability:
        message = f"{field}: model {self._name} is on another machine, and responses of it are not kept here"
        return UnsupportedCapability(f"{message}; send the whole conversation, with store false", field)
