"""Who sends a request, by the API key that it came with if keys are asked for, and which models that lets it use."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from mlxd.daemon.api.refusals import Forbidden
from mlxd.daemon.api.services import services_of
from mlxd.daemon.keys import ApiKey
from mlxd.daemon.peers.listing import PeerModel
from mlxd.daemon.peers.peer import Peer
from mlxd.registry.names import AmbiguousModel, Resolved, UnknownModel

CALLER = web.RequestKey("caller", ApiKey)


def caller_of(request: web.Request) -> ApiKey | None:
    """The key that a request came with; None where none is asked for."""
    return request.get(CALLER)


def key_of(request: web.Request) -> str | None:
    """The name of that key."""
    caller = caller_of(request)
    return None if caller is None else caller.name


def may_use(request: web.Request, meaning: Resolved) -> bool:
    """Whether the caller may use what a name means."""
    caller = caller_of(request)
    return caller is None or caller.may_use(meaning, services_of(request).names.exact)


def usable_names(request: web.Request) -> Iterator[tuple[str, Resolved]]:
    """Every name of what the caller may use, with what it means: models, then aliases, then presets."""
    names = services_of(request).names.exact.items()
    return ((name, meaning) for name, meaning in names if may_use(request, meaning))


def peer_names(request: web.Request) -> Iterator[tuple[str, Peer, PeerModel]]:
    """Every name by which the caller may use a model of a peer: its own, or `peer/name` where that is taken here."""
    services = services_of(request)
    told: set[str] = set()
    for peer in services.peers.all():
        for model in peer.usable():
            name = model.name if not services.names.takes(model.name) else f"{peer.name}/{model.name}"
            if name not in told and not services.names.takes(name) and may_use_there(request, peer, model.name):
                told.add(name)
                yield name, peer, model


def peer_model(request: web.Request, name: str) -> tuple[Peer, PeerModel] | None:
    """The model of a peer that a name means: of the peer that it names, or of the first that has such a model."""
    peers = services_of(request).peers
    named = peers.named(name)
    places = [named] if named is not None else [(peer, name) for peer in peers.all()]
    for peer, asked in places:
        wanted = peer.listing.called(asked)
        if wanted is not None and peer.is_up and peer.may_have(wanted) and may_use_there(request, peer, wanted):
            return peer, peer.models[wanted]
    return None


def may_use_there(request: web.Request, peer: Peer, name: str) -> bool:
    """Whether the caller may use a peer's model of this name."""
    return any(may_use(request, Resolved(known)) for known in (name, f"{peer.name}/{name}"))


def usable_meaning(request: web.Request, name: str | None, default: str = "") -> Resolved:
    """What a name means, as far as it is the caller's to use. The models of others are not told of either.

    Raises Forbidden, UnknownModel and AmbiguousModel.
    """
    names = services_of(request).names
    try:
        meaning = names.resolve(name, default)
    except UnknownModel as error:
        raise UnknownModel(error.name, _usable(request, error.suggestions)) from None
    except AmbiguousModel as error:
        candidates = _usable(request, error.candidates)
        raise (AmbiguousModel(error.name, candidates) if candidates else UnknownModel(error.name, ())) from None
    return _allowed(request, meaning, name)


def usable_model(request: web.Request, name: str) -> str:
    """The model that a name means, to be told of or changed as a whole: its preset alone is not enough for that.

    Raises Forbidden, UnknownModel and AmbiguousModel.
    """
    meaning = usable_meaning(request, name)
    return _allowed(request, Resolved(meaning.model), name).model


def _usable(request: web.Request, names: tuple[str, ...]) -> tuple[str, ...]:
    exact = services_of(request).names.exact
    return tuple(name for name in names if may_use(request, exact[name]))


def _allowed(request: web.Request, meaning: Resolved, name: str | None) -> Resolved:
    """What the caller's `name` means, no more of which is repeated than was sent. Raises Forbidden."""
    caller = caller_of(request)
    if caller is None or may_use(request, meaning):
        return meaning
    wanted = f"model {name!r}" if name else "the default model"
    raise Forbidden(f"{wanted} is none of those of this key: {', '.join(caller.models)}", "model")
