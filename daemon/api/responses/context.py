"""What a request asks a model: the conversation before it and its own items, with all references resolved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.responses.conversation import Messages, template_messages
from mlxd.daemon.api.responses.items import Item, ReferenceItem
from mlxd.daemon.api.responses.kept_items import encode_input, items_by_id, items_up_to
from mlxd.daemon.api.responses.objects import ResponseObject
from mlxd.daemon.api.responses.parsing import WantedPrompt
from mlxd.daemon.api.responses.store import LiveResponse, ResponseStore, Turn

# The weight of a request, and bytes of kept JSON, that are worked through in a moment; more is beside the event loop.
_QUICK_WEIGHT = 500
_QUICK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Context:
    """The turn before, if there is one, the messages for a chat template, and the JSON of the items that it adds."""

    previous: Turn | None
    messages: Messages
    input: bytes

    def turn(self, live: LiveResponse, response: ResponseObject) -> Turn:
        """The turn that a response makes of it."""
        return Turn(
            id=live.id,
            key=live.key,
            failed=response.status == "failed",
            input=self.input,
            answer=msgspec.json.encode(response),
            items=tuple(item.id for item in response.output),
            parent=self.previous,
        )


async def context_of(store: ResponseStore, wanted: WantedPrompt, owner: str | None) -> Context:
    """What a request asks, as far as what it goes on from is the caller's.

    Raises ResponseNotFound, InvalidField and UnsupportedCapability.
    """
    name = wanted.body.previous_response_id
    previous = None if name is None else _previous(store, name, owner)
    referred = list(dict.fromkeys(_referred(store, wanted, owner)))
    size = sum(turn.size for turn in referred) + (previous.conversation_size if previous is not None else 0)
    if wanted.weight > _QUICK_WEIGHT or size > _QUICK_BYTES:
        return await asyncio.to_thread(_context, wanted, previous, referred)
    return _context(wanted, previous, referred)


def _previous(store: ResponseStore, name: str, owner: str | None) -> Turn:
    param = "previous_response_id"
    if store.live(name, owner) is not None:
        raise InvalidField(f"{param}: this response is still in progress; wait for its end or cancel it", param)
    turn = store.get(name, owner, param)
    if turn.failed:
        raise InvalidField(f"{param}: this response has failed, so that nothing can go on from it", param)
    return turn


def _referred(store: ResponseStore, wanted: WantedPrompt, owner: str | None) -> Iterator[Turn]:
    for index, item in enumerate(wanted.items):
        if isinstance(item, ReferenceItem):
            yield store.with_item(item.id, owner, f"input[{index}].id")


def _context(wanted: WantedPrompt, previous: Turn | None, referred: Sequence[Turn]) -> Context:
    found = items_by_id(referred)
    items: list[Item] = [found[item.id] if isinstance(item, ReferenceItem) else item for item in wanted.items]
    messages = template_messages(wanted.body.instructions, items_up_to(previous), items)
    if not messages:
        raise InvalidField("input: there is nothing in it that a model is shown", "input")
    return Context(previous, messages, encode_input(items))
