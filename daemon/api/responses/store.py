"""Keeps responses in memory for as long as there is room, and knows those that are in the making."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count

from aiohttp import web

from mlxd.daemon.api.refusals import ResponseNotFound

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 1024 * 1024
# What a turn and an item cost beside their JSON, in bytes: objects, ids and places in tables.
TURN_COST = 1024
ITEM_COST = 256

ID_PREFIX = "resp_"
_SHOWN = 80


def _nothing_to_cancel() -> bool:
    return False


@dataclass(slots=True, eq=False)
class Turn:
    """One turn of a conversation: `input` is the JSON of the items that it added, `answer` that of its response.

    `items` are the ids of those in its output. Turns that go on from the same one share it. `holders` is for the store.
    """

    id: str
    key: str | None
    failed: bool
    input: bytes
    answer: bytes
    items: tuple[str, ...]
    parent: Turn | None = None
    holders: int = 0
    size: int = field(init=False)
    conversation_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.input) + len(self.answer) + TURN_COST + ITEM_COST * len(self.items)
        self.conversation_size = self.size + (self.parent.conversation_size if self.parent is not None else 0)

    def conversation(self) -> list[Turn]:
        """All turns up to this one, oldest first."""
        turns = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]


@dataclass(slots=True, eq=False)
class LiveResponse:
    """A response in the making. `cancel` ends it on purpose, `snapshot` gives the JSON of what there is of it."""

    id: str
    key: str | None
    is_wanted: bool
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    cancel: Callable[[], bool] = _nothing_to_cancel
    snapshot: Callable[[], bytes] = bytes

    @property
    def request_id(self) -> str:
        """The id of the request that makes it."""
        return self.id.removeprefix(ID_PREFIX)

    def end(self) -> None:
        """It has ended, though its reader may not have all of it yet. What made it is let go."""
        self.cancel, self.snapshot = _nothing_to_cancel, bytes
        self.ended.set()


class ResponseStore:
    """Responses by id, each visible to the key that made it; an `owner` of None sees all. For the event loop only.

    The longest unused ones go first: `max_responses` of them are kept at most, and `max_bytes` of what they and the
    conversations before them take. A conversation of more than half of that is not kept.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.bytes = 0
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Turn] = OrderedDict()
        self._by_item: dict[str, Turn] = {}
        self._live: dict[str, LiveResponse] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def track(
        self, request_id: str, key: str | None, *, is_wanted: bool, taken: Container[str] = ()
    ) -> Iterator[LiveResponse]:
        """Know a response while it is made; it may be kept if it `is_wanted`.

        Its id is its own, and so is that of its request, which is none of those that are `taken`.
        """
        live = LiveResponse(self._free_id(request_id, taken), key, is_wanted)
        self._live[live.id] = live
        try:
            yield live
        finally:
            del self._live[live.id]
            live.end()

    def keep(self, turn: Turn) -> None:
        """Keep a response, and drop others that there is no more room for."""
        if turn.conversation_size > self._max_bytes // 2:
            return
        self._kept[turn.id] = turn
        self._by_item.update(dict.fromkeys(turn.items, turn))
        self._hold(turn)
        while len(self._kept) > self._max_responses or self.bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def find(self, response_id: str, owner: str | None) -> Turn | None:
        """A response that is kept, if there is one. This is no use of it."""
        turn = self._kept.get(response_id)
        return turn if turn is not None and owner in (None, turn.key) else None

    def get(self, response_id: str, owner: str | None, param: str | None = None) -> Turn:
        """A response that is kept. Raises ResponseNotFound, which names `param`."""
        turn = self.find(response_id, owner)
        if turn is None:
            raise ResponseNotFound(_missing("response", response_id), param)
        self._kept.move_to_end(response_id)
        return turn

    def with_item(self, item_id: str, owner: str | None, param: str) -> Turn:
        """The response that has this item in its output. Raises ResponseNotFound."""
        turn = self._by_item.get(item_id)
        if turn is None or owner not in (None, turn.key):
            raise ResponseNotFound(_missing("response with an item", item_id), param)
        return self.get(turn.id, owner, param)

    def live(self, response_id: str, owner: str | None) -> LiveResponse | None:
        """A response in the making; once it has ended it is kept, or nowhere."""
        live = self._live.get(response_id)
        return live if live is not None and not live.ended.is_set() and owner in (None, live.key) else None

    def delete(self, response_id: str, owner: str | None) -> None:
        """Keep a response no longer; those that go on from it are not touched. Raises ResponseNotFound."""
        self._drop(self.get(response_id, owner).id)

    def _drop(self, response_id: str) -> None:
        turn = self._kept.pop(response_id)
        for item in turn.items:
            del self._by_item[item]
        self._release(turn)

    def _hold(self, held: Turn | None) -> None:
        """A turn counts while something holds it: its place in the store, or a later turn that counts itself."""
        while held is not None:
            held.holders += 1
            if held.holders > 1:
                return
            self.bytes += held.size
            held = held.parent

    def _release(self, held: Turn | None) -> None:
        while held is not None:
            held.holders -= 1
            if held.holders > 0:
                return
            self.bytes -= held.size
            held = held.parent

    def _free_id(self, request_id: str, taken: Container[str]) -> str:
        wanted = chain((request_id,), (f"{request_id}-{number}" for number in count(2)))
        names = (f"{ID_PREFIX}{name}" for name in wanted if name not in taken)
        return next(name for name in names if name not in self._kept and name not in self._live)


STORE = web.AppKey("responses", ResponseStore)


def _missing(what: str, wanted: str) -> str:
    shown = wanted if len(wanted) <= _SHOWN else f"{wanted[:_SHOWN]}…"
    why = "it was deleted, dropped to make room for newer ones, too long, made before a restart, or not to be stored"
    return f"no {what} {shown} is kept: {why}; send the conversation in input"
