"""What a peer says of its models: GET /v1/models of mlxd, or of any OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from mlxd.registry.peer_choice import Standing

_SHOWN = 200
# States in which a model of an mlxd takes a request without a load.
_READY = frozenset({"ready"})


class BadListing(Exception):
    """The peer does not answer as a server of models does."""


class _Listed(Struct, frozen=True):
    id: str
    state: str | None = None
    waiting: int = 0
    kind: str | None = None
    context_length: int | None = None
    max_model_len: int | None = None
    capabilities: Any = None


class _Answer(Struct, frozen=True):
    data: list[_Listed]


@dataclass(frozen=True, slots=True)
class PeerModel:
    """One name that a peer takes. `state` is an mlxd's; other servers have all of theirs ready. `waiting` counts
    requests that wait for it there, lengths are tokens. What it does not say is None.
    """

    name: str
    state: str
    waiting: int
    kind: str | None
    context_length: int | None
    capabilities: list[str] | None

    @property
    def standing(self) -> Standing:
        """How far it is from answering."""
        return Standing.READY if self.state in _READY else Standing.LOADS_THERE


@dataclass(frozen=True, slots=True)
class Listing:
    """All names that a peer takes, and whether it is an mlxd."""

    models: Mapping[str, PeerModel]
    is_mlxd: bool = False


def read_listing(data: bytes, *, is_mlxd: bool) -> Listing:
    """What the body of an answer lists. Raises BadListing."""
    try:
        models = list(map(_model, msgspec.json.decode(data, type=_Answer).data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadListing(f"its list of models cannot be read: {str(error)[:_SHOWN]}") from None
    return Listing({model.name: model for model in models}, is_mlxd)


def _model(listed: _Listed) -> PeerModel:
    said = listed.capabilities
    capabilities = said if isinstance(said, list) and all(isinstance(name, str) for name in said) else None
    length = listed.context_length or listed.max_model_len
    return PeerModel(listed.id, listed.state or "ready", max(0, listed.waiting), listed.kind, length, capabilities)
