"""The daemon's calls to a worker's tokenizer: any thread but the event loop's may wait for one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from mlxd.engines.errors import EngineClosed
from mlxd.engines.worker.error_forms import error_of
from mlxd.engines.worker.forms import ImagesOutline
from mlxd.engines.worker.frames import to_json
from mlxd.engines.worker.to_daemon import Reply
from mlxd.engines.worker.to_worker import Call, Drop, StopCall

# Seconds after which whoever waits looks up, in case it was given up meanwhile.
_LOOK_UP = 0.5


class HeldThere:
    """Something that the worker keeps for as long as this object lives."""

    def __init__(self, calls: Calls, number: int) -> None:
        self.number = number
        weakref.finalize(self, calls.drop, number).atexit = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call; `held` is what the worker keeps for it."""

    value: Any
    images: ImagesOutline | None = None
    held: HeldThere | None = None


class Calls:
    """`send` is called on the event loop."""

    def __init__(self, send: Callable[[msgspec.Struct], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._send = send
        self._numbers = count(1)
        self._pending: dict[int, Future[Reply]] = {}
        self._over: Exception | None = None

    def make(self, method: str, *arguments: Any, files: Sequence[Path] = ()) -> Answer:
        """The worker's answer. Raises what the call raised there, or what ended the worker.

        How long it may take is for the caller's thread to bound: one that is stopped stops the call.
        """
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError(f"{method} waits for a worker: call it on a thread, not on the event loop")
        number, reply = next(self._numbers), Future[Reply]()
        call = Call(number, method, to_json(arguments), list(files))
        try:
            self._post(self._begin, call, reply)
            while not reply.done() and not self._loop.is_closed():
                wait([reply], _LOOK_UP)
            return self._answer(reply)
        except BaseException:
            # it may be stopped after the reply has come, before anybody holds what came with it
            self._post(self._stop, number, reply)
            raise

    def drop(self, held: int) -> None:
        """What the worker holds under this number is not needed any more; from any thread, at any time."""
        self._post(self._send, Drop(held))

    def answered(self, reply: Reply) -> None:
        """The worker has answered."""
        pending = self._pending.pop(reply.number, None)
        if pending is not None:
            pending.set_result(reply)
        else:  # nobody waits any more
            self._let_go(reply)

    def end(self, error: Exception) -> None:
        """The worker is gone: calls that wait, and those to come, raise `error`."""
        self._over = error
        for pending in self._pending.values():
            pending.set_exception(error)
        self._pending.clear()

    def _answer(self, future: Future[Reply]) -> Answer:
        if not future.done():
            raise EngineClosed("the event loop has ended")
        reply = future.result()
        if reply.error is not None:
            raise error_of(reply.error)
        return Answer(reply.value, reply.images, None if reply.held is None else HeldThere(self, reply.held))

    def _begin(self, call: Call, reply: Future[Reply]) -> None:
        if self._over is not None:
            reply.set_exception(self._over)
            return
        try:
            self._send(call)
        except ValueError as error:  # it is too long
            reply.set_exception(error)
        else:
            self._pending[call.number] = reply

    def _stop(self, number: int, reply: Future[Reply]) -> None:
        if self._pending.pop(number, None) is not None:
            self._send(StopCall(number))
        elif reply.done() and reply.exception() is None:
            self._let_go(reply.result())

    def _let_go(self, reply: Reply) -> None:
        if reply.held is not None:
            self._send(Drop(reply.held))

    def _post(self, do: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is gone, and the worker with it
            self._loop.call_soon_threadsafe(do, *arguments)
