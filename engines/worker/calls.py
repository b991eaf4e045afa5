"""The daemon's calls to a worker's tokenizer: any thread but the event loop's may wait for one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from itertools import count
from typing import Any

import msgspec

from mlxd.engines.worker.error_forms import error_of
from mlxd.engines.worker.frames import to_json
from mlxd.engines.worker.to_daemon import Reply
from mlxd.engines.worker.to_worker import Call, Drop, StopCall

# Seconds after which whoever waits looks up, in case it was given up meanwhile.
_LOOK_UP = 0.5


class Calls:
    """`send` is called on the event loop."""

    def __init__(self, send: Callable[[msgspec.Struct], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._send = send
        self._numbers = count(1)
        self._pending: dict[int, Future[Reply]] = {}
        self._over: Exception | None = None

    def make(self, method: str, *arguments: Any, files: Sequence[str] = ()) -> Reply:
        """The worker's reply. Raises what the call raised there, or what ended the worker.

        How long it may take is for the caller's thread to bound: one that is stopped stops the call.
        """
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError(f"{method} waits for a worker: call it on a thread, not on the event loop")
        number, reply = next(self._numbers), Future[Reply]()
        call = Call(number, method, to_json(arguments), list(files))
        self._loop.call_soon_threadsafe(self._begin, call, reply)
        try:
            while not reply.done():
                wait([reply], _LOOK_UP)
            answer = reply.result()
        except BaseException:
            self._loop.call_soon_threadsafe(self._stop, number)
            raise
        if answer.error is not None:
            raise error_of(answer.error, {})
        return answer

    def drop(self, held: int) -> None:
        """What the worker holds under this number is not needed any more; from any thread, at any time."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, Drop(held))

    def answered(self, reply: Reply) -> None:
        """The worker has answered."""
        pending = self._pending.pop(reply.number, None)
        if pending is not None:
            pending.set_result(reply)
        elif reply.images is not None:  # nobody waits any more
            self._send(Drop(reply.images.held))

    def end(self, error: Exception) -> None:
        """The worker is gone: calls that wait, and those to come, raise `error`."""
        self._over = error
        for pending in self._pending.values():
            pending.set_exception(error)
        self._pending.clear()

    def _begin(self, call: Call, reply: Future[Reply]) -> None:
        if self._over is not None:
            reply.set_exception(self._over)
            return
        self._pending[call.number] = reply
        self._send(call)

    def _stop(self, number: int) -> None:
        if self._pending.pop(number, None) is not None:
            self._send(StopCall(number))
