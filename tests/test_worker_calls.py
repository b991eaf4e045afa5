"""Calls to a worker's tokenizer: whoever leaves, at whatever moment, leaves nothing behind on either side."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest
from worker_harness import until

from mlxd.engines.errors import EngineClosed, EngineCrashed, InvalidRequest, StepFailed
from mlxd.engines.prompt_images import EncodedPrompt, PreparedImage, PromptImages
from mlxd.engines.stoppable import StoppableThreads, StoppableWork, Stopped
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.worker.calls import Answer, Calls
from mlxd.engines.worker.frames import Frames, frame
from mlxd.engines.worker.held import Held
from mlxd.engines.worker.image_outlines import outlined
from mlxd.engines.worker.to_daemon import Reply, ToDaemon
from mlxd.engines.worker.to_worker import Call, Drop, StopCall, ToWorker
from mlxd.engines.worker.tokenizer_calls import TokenizerCalls

IMAGE = PreparedImage(b"digest", 2, {"pixels": np.zeros((3, 4), np.float32)})
IMAGES = PromptImages([IMAGE], 7, 5, {"pixels": np.zeros((3, 4), np.float32)})


class Imagining(Tokenizer):
    """Every prompt has images; it is made once `go` is set."""

    def __init__(self) -> None:
        super().__init__(None)
        self.go = threading.Event()
        self.begun = threading.Event()

    def encode_prompt(self, messages: Any, template: Any = None, tools: Any = None) -> EncodedPrompt:
        self.begun.set()
        while not self.go.wait(0.001):
            pass
        return EncodedPrompt([1, 2], IMAGES)

    def render_chat(self, messages: Any, template: Any = None, tools: Any = None) -> str:
        raise RuntimeError("an odd template")

    def encode(self, text: str, *, special: bool = True) -> Any:
        if not special:
            raise InvalidRequest("special it must be", "text")
        return [len(text)]


class Both:
    """The daemon's side and the worker's, with frames and threads and no socket between them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.sent: list[Any] = []
        self.held = Held()
        self.tokenizer = Imagining()
        self.there = TokenizerCalls(self, self.held)  # type: ignore[arg-type] - it only sends
        self.there.tokenizer = self.tokenizer
        self.here = Calls(self._send)

    def send(self, message: Any) -> None:
        (arrived,) = Frames(ToDaemon).feed(frame(message))
        self._loop.call_soon_threadsafe(self.here.answered, arrived)

    def _send(self, message: Any) -> None:
        (arrived,) = Frames(ToWorker).feed(frame(message))
        self.sent.append(arrived)
        match arrived:
            case Call():
                self.there.make(arrived)
            case StopCall(number):
                self.there.stop(number)
            case Drop(number):
                self.held.drop(number)

    def holds(self, most: int = 100) -> int:
        """How many things the worker keeps, of the first ones."""
        return sum(map(self._holds, range(1, most)))

    def _holds(self, number: int) -> bool:
        try:
            self.held.get(number)
        except KeyError:
            return False
        return True

    def caller(self) -> tuple[StoppableWork[Answer], Future[Any]]:
        """A thread that waits for a prompt with images, and how it ended."""
        ended: Future[Any] = Future()
        work = partial(self.here.make, "encode_prompt", [], None, None, [])
        return StoppableThreads("caller").start(work, ended.set_result), ended


async def begun(both: Both) -> None:
    await asyncio.to_thread(both.tokenizer.begun.wait, 5)


async def ended(future: Future[Any]) -> Future[Any]:
    """How a caller's thread ended."""
    outcome: Future[Any] = await asyncio.wait_for(asyncio.wrap_future(future), 5)
    return outcome


async def test_what_the_worker_keeps_is_kept_for_as_long_as_it_is_known_here():
    both = Both()
    both.tokenizer.go.set()
    answer = await asyncio.to_thread(both.here.make, "encode_prompt", [], None, None, [])
    images = outlined(answer.images, answer.held)
    del answer
    gc.collect()
    await asyncio.sleep(0)
    assert both.holds() == 1
    assert images.nbytes == IMAGES.nbytes
    del images
    gc.collect()
    await until(lambda: both.holds() == 0)


async def test_a_caller_that_is_stopped_stops_the_call_and_nothing_is_kept():
    both = Both()
    thread, future = both.caller()
    await begun(both)
    thread.stop()
    assert isinstance((await ended(future)).exception(), Stopped)
    await until(lambda: any(isinstance(message, StopCall) for message in both.sent))
    both.tokenizer.go.set()
    await until(lambda: both.holds() == 0 and not both.there._running)


async def test_a_caller_that_is_stopped_just_as_its_answer_comes_keeps_nothing():
    both = Both()
    thread, future = both.caller()
    await begun(both)
    thread.stop()  # it sleeps, and sees this when it wakes
    both.tokenizer.go.set()
    assert isinstance((await ended(future)).exception(), Stopped)
    del thread, future
    await until(lambda: both.holds() == 0)


async def test_an_answer_for_nobody_is_let_go():
    both = Both()
    both.held.hold(IMAGES)
    both.here.answered(Reply(5, b"", held=1))
    assert both.holds() == 0


async def test_whenever_callers_are_stopped_nothing_is_left():
    chance = random.Random(7)
    both = Both()
    both.tokenizer.go.set()
    for _ in range(60):
        thread, future = both.caller()
        await asyncio.to_thread(threading.Event().wait, chance.random() * 0.002)
        thread.stop()
        await ended(future)
        del thread, future
    gc.collect()
    await until(lambda: both.holds() == 0 and not both.there._running)


async def test_a_thread_that_is_stopped_as_soon_as_it_is_there_ends_and_says_so():
    threads = StoppableThreads("short")
    for _ in range(50):
        future: Future[Any] = Future()
        threads.start(lambda: None, future.set_result).stop()
        outcome = await ended(future)
        assert outcome.exception() is None or isinstance(outcome.exception(), Stopped)


async def test_what_a_call_raises_is_raised_here(capfd):
    both = Both()
    with pytest.raises(InvalidRequest, match="special it must be") as raised:
        await asyncio.to_thread(both.here.make, "encode", "x", False)
    assert raised.value.param == "text"
    with pytest.raises(StepFailed, match="RuntimeError: an odd template"):
        await asyncio.to_thread(both.here.make, "render_chat", [])
    with pytest.raises(StepFailed, match="no_such_method"):
        await asyncio.to_thread(both.here.make, "no_such_method")


async def test_an_answer_that_cannot_cross_is_an_error_and_not_silence(monkeypatch):
    both = Both()
    monkeypatch.setitem(both.there._methods, "encode", lambda *_: "\ud800")  # type: ignore[arg-type]
    with pytest.raises(StepFailed, match="surrogates"):
        await asyncio.to_thread(both.here.make, "encode", "x", True)


async def test_a_worker_without_another_thread_says_so(monkeypatch):
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    both = Both()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    both.there.make(Call(1, "encode", b"[]"))
    monkeypatch.undo()
    assert not both.there._running


async def test_a_call_that_is_too_long_to_be_sent_fails_alone(monkeypatch):
    both = Both()
    monkeypatch.setattr("mlxd.engines.worker.frames.MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="bytes"):
        await asyncio.to_thread(both.here.make, "encode", "x" * 2000, True)
    assert list((await asyncio.to_thread(both.here.make, "encode", "x", True)).value) == [1, 0, 0, 0]


async def test_whoever_waits_is_told_of_the_end_and_so_is_whoever_comes_after_it():
    both = Both()
    thread, future = both.caller()
    await begun(both)
    both.here.end(EngineCrashed("gone"))
    assert isinstance((await ended(future)).exception(), EngineCrashed)
    with pytest.raises(EngineCrashed):
        await asyncio.to_thread(both.here.make, "encode", "x", True)
    both.tokenizer.go.set()
    await until(lambda: both.holds() == 0)
    del thread


async def test_the_event_loop_itself_may_not_wait():
    with pytest.raises(RuntimeError, match="on a thread"):
        Both().here.make("encode", "x", True)


def test_a_thread_that_waits_when_the_event_loop_ends_is_let_go():
    made: list[Both] = []
    futures: list[Future[Any]] = []

    async def serve() -> None:
        both = Both()
        made.append(both)
        futures.append(both.caller()[1])
        await begun(both)

    asyncio.run(serve())
    outcome = futures[0].result(5)
    assert isinstance(outcome.exception(), EngineClosed)
    made[0].here.drop(1)
    made[0].here._pending.clear()
