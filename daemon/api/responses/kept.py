"""The calls about responses that are kept or in the making: read, list what went in, cancel and delete."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

import msgspec
from aiohttp import web

from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.requests import owner_of
from mlxd.daemon.api.responses.bodies import ENCRYPTED, LOGPROBS
from mlxd.daemon.api.responses.items import Item
from mlxd.daemon.api.responses.kept_items import input_of, items_up_to, kept_item
from mlxd.daemon.api.responses.objects import DeletedResponse, ItemList, ResponseObject
from mlxd.daemon.api.responses.store import STORE, Turn
from mlxd.daemon.api.routes import Query, Route, Scope

MAX_LISTED = 100
LISTED = 20
# Seconds that a cancel waits for the response to end: its stream may be stuck at a client that reads nothing.
CANCEL_PATIENCE = 10.0

_INCLUDED = frozenset({LOGPROBS, ENCRYPTED})
_OFF = frozenset({"false", "0"})
_SHOWN = 60


def routes() -> list[Route]:
    """This module's part of the API."""
    one = "/v1/responses/{id}"
    return [
        Route("GET", one, retrieve, Scope.INFER, answer=ResponseObject),
        Route("DELETE", one, delete, Scope.INFER, answer=DeletedResponse),
        Route("POST", f"{one}/cancel", cancel, Scope.INFER, answer=ResponseObject),
        Route(
            "GET",
            f"{one}/input_items",
            list_input,
            Scope.INFER,
            answer=ItemList,
            query={"limit": Query(f"How many items, 1 to {MAX_LISTED}; {LISTED} unless said.")},
        ),
    ]


async def retrieve(request: web.Request) -> web.Response:
    """A response as it was answered, or as far as it is."""
    _check_query(request, {"include", "include_obfuscation", "stream"})
    for name in ("stream", "include_obfuscation"):
        if request.query.get(name, "false") not in _OFF:
            raise InvalidField(f"{name} is not supported here: a kept response is read as a whole", name)
    store, name, owner = request.app[STORE], request.match_info["id"], owner_of(request)
    live = store.live(name, owner)
    return _json(live.snapshot() if live is not None else store.get(name, owner).answer)


async def delete(request: web.Request) -> web.Response:
    """Keep a response no longer; one that is in the making is cancelled, and never kept."""
    store, name, owner = request.app[STORE], request.match_info["id"], owner_of(request)
    live = store.live(name, owner)
    if live is None:
        store.delete(name, owner)
    else:
        live.is_wanted = False
        live.cancel()
    return _json(msgspec.json.encode(DeletedResponse(name)))


async def cancel(request: web.Request) -> web.Response:
    """End a response that is in the making and keep what it has; one that has ended stays as it is."""
    store, name, owner = request.app[STORE], request.match_info["id"], owner_of(request)
    live = store.live(name, owner)
    if live is None:
        return _json(store.get(name, owner).answer)
    snapshot = live.snapshot  # it is let go at the end
    live.cancel()
    await _wait(live.ended)
    return _json(snapshot())


async def list_input(request: web.Request) -> web.Response:
    """The items that a response was made from, those of earlier turns too; the newest first unless said."""
    _check_query(request, {"after", "include", "limit", "order"})
    turn = request.app[STORE].get(request.match_info["id"], owner_of(request))
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidField("order: expected asc or desc", "order")
    limit, last_seen = _limit(request), request.query.get("after")
    # off the event loop: all of a conversation may be long
    return _json(await asyncio.to_thread(_listed, turn, order, last_seen, limit))


def _listed(turn: Turn, order: str, last_seen: str | None, limit: int) -> bytes:
    items = [*items_up_to(turn.parent), *input_of(turn)]
    rest = _after(items if order == "asc" else items[::-1], last_seen)
    shown = [kept_item(item) for item in rest[:limit]]
    ends = (shown[0].id, shown[-1].id) if shown else ("", "")
    return msgspec.json.encode(ItemList(shown, *ends, len(rest) > len(shown)))


def _after(items: Sequence[Item], last_seen: str | None) -> Sequence[Item]:
    if last_seen is None:
        return items
    place = next((place for place, item in enumerate(items) if item.id == last_seen), None)
    if place is None:
        raise InvalidField("after: no item of this response has this id", "after")
    return items[place + 1 :]


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(LISTED))
    if not text.isascii() or not text.isdigit() or len(text) > 3 or not 1 <= int(text) <= MAX_LISTED:  # noqa: PLR2004
        raise InvalidField(f"limit: expected a number from 1 to {MAX_LISTED}", "limit")
    return int(text)


def _check_query(request: web.Request, known: Collection[str]) -> None:
    """Raise InvalidField for a parameter that nobody knows, and for what cannot be included."""
    for name in request.query:
        if name.removesuffix("[]") not in known:
            shown = name[:_SHOWN]
            raise InvalidField(f"{shown} is not a parameter of this call; leave it out", shown)
    _check_included([*request.query.getall("include", ()), *request.query.getall("include[]", ())])


def _check_included(wanted: Iterable[str]) -> None:
    for each in wanted:
        if each not in _INCLUDED:
            raise InvalidField(f"include: {each[:_SHOWN]} is not served here; leave it out", "include")


async def _wait(ended: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(CANCEL_PATIENCE):
            await ended.wait()
    except TimeoutError:
        return


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
