"""Threads for chat templates and tokenisers. Both are programs that come with a model: one may never end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import structlog

from mlxd.engines.errors import InvalidRequest, TokenizersBusy
from mlxd.engines.stoppable import StoppableThreads

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")

# Tokenisers release the GIL, so a few threads help; no model may hold them all.
THREADS = 4
THREADS_PER_MODEL = 2
# Seconds that one prompt may take; the longest ones that fit in a context take a few.
PATIENCE = 30.0


class _Work(Generic[T]):
    """One piece of work on one of `threads`; `on_end` is called on the event loop when it is done."""

    def __init__(self, threads: StoppableThreads, work: Callable[[], T], on_end: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self.outcome: asyncio.Future[T] = self._loop.create_future()
        self._running = threads.start(work, self._ended)

    def stop(self) -> None:
        """Stop it as soon as it runs Python code."""
        self._running.stop()

    def _ended(self, result: Future[T]) -> None:
        # the event loop may be gone when a thread that was given up ends after all
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._report, result)

    def _report(self, result: Future[T]) -> None:
        if not self.outcome.done():  # its reader may have left
            self._hand_over(result)
        self._on_end()

    def _hand_over(self, result: Future[T]) -> None:
        error = result.exception()
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(result.result())


class TokenizerThreads:
    """Runs work for models, a few at a time. Used on the event loop only; seconds for `patience`."""

    def __init__(self, threads: int = THREADS, per_model: int = THREADS_PER_MODEL, patience: float = PATIENCE) -> None:
        self._all = asyncio.Semaphore(threads)
        self._per_model = per_model
        self._patience = patience
        self._own: dict[str, asyncio.Semaphore] = {}
        self._threads = StoppableThreads("tokenizer")

    async def run(self, model: str, work: Callable[[], T]) -> T:
        """The result of `work`, which runs on a thread. Raises what it raises, InvalidRequest if it does not end, and
        TokenizersBusy if no thread was free for it.

        A reader that leaves does not end the work: its thread counts until it is done or given up.
        """
        own = self._own.setdefault(model, asyncio.Semaphore(self._per_model))
        async with contextlib.AsyncExitStack() as held:
            await self._wait_for(model, held, own)
            outcome = self._start(model, own, work)
            held.pop_all()  # the thread gives the slots back
        try:
            async with asyncio.timeout(self._patience) as patience:
                return await outcome
        except TimeoutError:
            if not patience.expired():
                raise
            message = f"the chat template or the tokenizer of {model} did not end within {self._patience:g} s"
            raise InvalidRequest(f"{message}; shorten the prompt, or mend the template") from None
        finally:
            # an error knows this frame, and what it came in would keep both, with all that the work held
            del outcome

    async def _wait_for(self, model: str, held: contextlib.AsyncExitStack, own: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(self._patience):
                for slots in (own, self._all):
                    await held.enter_async_context(slots)
        except TimeoutError:
            raise TokenizersBusy(model, self._patience) from None

    def _start(self, model: str, own: asyncio.Semaphore, work: Callable[[], T]) -> asyncio.Future[T]:
        """Start a thread that holds a slot of its model until it ends, and one of all until it is given up."""
        given_up = False

        def give_up() -> None:
            nonlocal given_up
            given_up = True
            log.warning("tokenize.slow", model=model, seconds=self._patience, given_up=True)
            self._all.release()
            running.stop()

        def on_end() -> None:
            timer.cancel()
            own.release()
            if not given_up:
                self._all.release()

        # the timer last: without a thread there is nothing to give up
        running = _Work(self._threads, work, on_end)
        timer = asyncio.get_running_loop().call_later(self._patience, give_up)
        return running.outcome
