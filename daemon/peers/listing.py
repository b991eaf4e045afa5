"""What a peer says of its models: GET /v1/models of mlxd, or of any OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from mlxd.daemon.config_schema import MAX_NAME
from mlxd.registry.peer_choice import Standing

MOST_MODELS = 5000
_SHOWN = 200
_READY = "ready"
_LATEST = ":latest"


class BadListing(Exception):
    """The peer does not answer as a server of models does."""


class _Answer(Struct, frozen=True):
    data: list[Any]


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
        return Standing.READY if self.state == _READY else Standing.LOADS_THERE


@dataclass(frozen=True, slots=True)
class Listing:
    """All names that a peer takes, whether it is an mlxd, and how many requests wait there."""

    models: Mapping[str, PeerModel]
    is_mlxd: bool = False
    waiting: int = 0

    def called(self, name: str) -> str | None:
        """The peer's own name for what is called so: exactly that, or without a `:latest`."""
        return next((one for one in (name, name.removesuffix(_LATEST)) if one in self.models), None)


def is_sane(name: str) -> bool:
    """Whether a model can be called so: what a peer lists and what a client asks for is shown and kept."""
    return 0 < len(name) <= MAX_NAME and name.isprintable()


def read_listing(data: bytes, *, is_mlxd: bool) -> Listing:
    """What the body of an answer lists; what in it cannot be used is passed over. Raises BadListing."""
    try:
        entries = msgspec.json.decode(data, type=_Answer).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadListing(f"its list of models cannot be read: {str(error)[:_SHOWN]}") from None
    if len(entries) > MOST_MODELS:
        raise BadListing(f"it lists {len(entries)} models; at most {MOST_MODELS} are taken")
    models = {model.name: model for model in _models(entries, is_mlxd=is_mlxd)}
    return Listing(models, is_mlxd, sum(model.waiting for model in models.values()))


def _models(entries: list[Any], *, is_mlxd: bool) -> Iterator[PeerModel]:
    for entry in entries:
        said = entry if isinstance(entry, dict) else {}
        name = said.get("id")
        if not isinstance(name, str) or not is_sane(name):
            continue
        own = said if is_mlxd else {}  # the words of others mean other things
        capabilities = own.get("capabilities")
        known = isinstance(capabilities, list) and all(isinstance(each, str) for each in capabilities)
        yield PeerModel(
            name,
            _text(own.get("state")) or _READY,
            _count(own.get("waiting")) or 0,
            _text(own.get("kind")),
            _count(said.get("context_length")) or _count(said.get("max_model_len")),
            capabilities if known else None,
        )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and is_sane(value) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
