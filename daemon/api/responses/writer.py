"""Streams a response as server-sent events."""

from __future__ import annotations

from collections.abc import Iterable

from mlxd.daemon.api.errors import ErrorAnswer
from mlxd.daemon.api.responses.draft import Draft
from mlxd.daemon.api.responses.events import AnyEvent
from mlxd.daemon.api.sse import comment, named_frame
from mlxd.engines.types import RequestOutput


class EventWriter:
    """The events of one draft, framed."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def write(self, _: int, output: RequestOutput) -> bytes:
        """The events for one output."""
        return _framed(self._draft.add(output))

    def beat(self, progress: str) -> bytes:
        """A comment that says what it waits for, and an event for clients that see no comments."""
        return comment(progress) + _framed(self._draft.beat())

    def end(self) -> bytes:
        """Nothing follows the last event."""
        return b""

    def fail(self, error: ErrorAnswer) -> bytes:
        """The last events of a response that failed."""
        return _framed(self._draft.fail(error))


def _framed(events: Iterable[AnyEvent]) -> bytes:
    return b"".join(map(named_frame, events))
