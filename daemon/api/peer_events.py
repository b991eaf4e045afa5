"""The stream of a peer, cut between its events: what breaks off inside one leaves nothing that no client can read."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from mlxd.daemon.api.sse import SSE

NDJSON = "application/x-ndjson"
STREAMS = {"text/event-stream": SSE, NDJSON: NDJSON}
"""The types of streams that are passed on, as they are called to clients."""

# An event with so many bytes is passed on in pieces.
_MOST_BYTES = 262_144
_SEPARATORS: dict[str, Sequence[bytes]] = {SSE: (b"\n\n", b"\r\n\r\n"), NDJSON: (b"\n",)}
_BEGINS = re.compile(rb"(?:data|event|id|retry)\s*:|\{")
_DATA = re.compile(rb"^data:(.*)$", re.MULTILINE)
_PING = b"event: ping"


class WholeEvents:
    """Takes pieces of a stream of this type, and gives whole events."""

    def __init__(self, kind: str) -> None:
        self._separators = _SEPARATORS[kind]
        self._tail = b""

    def take(self, piece: bytes) -> bytes:
        """The events that are whole now, in one piece."""
        data = self._tail + piece
        end = max(data.rfind(one) + len(one) if one in data else 0 for one in self._separators)
        if end == 0 and len(data) > _MOST_BYTES:
            end = len(data)
        self._tail = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """What came last, without the end of an event."""
        return self._tail

    def first(self, events: bytes) -> bytes:
        """The first one."""
        ends = [events.index(one) + len(one) for one in self._separators if one in events]
        return events[: min(ends, default=len(events))]

    def waiting(self, events: bytes) -> bytes:
        """Those at the beginning that only say that there is no answer yet."""
        end = 0
        while end < len(events) and _only_waits(event := self.first(events[end:])):
            end += len(event)
        return events[:end]


def is_event(event: bytes) -> bool:
    """Whether this can be one, and is no garbage."""
    return _BEGINS.match(event.lstrip()) is not None


def is_error(event: bytes) -> bool:
    """Whether it says that there will be no answer."""
    data = b"\n".join(_DATA.findall(event)) or event
    try:
        said = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return bytes(said.get("error", b"null")) != b"null"


def _only_waits(event: bytes) -> bool:
    lines = event.splitlines()
    return event.startswith(_PING) or all(not line or line.startswith(b":") for line in lines)
