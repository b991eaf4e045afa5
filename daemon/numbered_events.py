"""Events that have one number each, as readers of a stream get them."""

from __future__ import annotations

import secrets

# Bytes of events that a reader takes at once, so that what is written for it stays small.
TAKEN_BYTES = 64 * 2**10
# Numbers start somewhere below this, and stay integers for readers that have only floats.
_FIRST_NUMBERS = 2**48


def first_number() -> int:
    """Where numbers begin: drawn, so that none of an earlier daemon is near one of this."""
    return secrets.randbelow(_FIRST_NUMBERS)


def event_frame(number: int, name: str, data: bytes) -> bytes:
    """A server-sent event; `data` is JSON on one line."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, name.encode(), data)
