"""The daemon's end of a worker's socket, when the other end is hostile, slow, stuck or gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from worker_harness import until

from mlxd.engines.worker import link as link_module
from mlxd.engines.worker.frames import frame
from mlxd.engines.worker.link import Link
from mlxd.engines.worker.to_daemon import Beat, TrimDone
from mlxd.engines.worker.to_worker import Call, Drop

BEAT = Beat(0.0, 1, 2, 3)


class Linked:
    """A link, what it took, and how it broke; `fails` is raised for each message."""

    def __init__(self) -> None:
        own, self.other = socket.socketpair()
        self.taken: list[Any] = []
        self.broken: list[str | None] = []
        self.fails: Exception | None = None
        self.link = Link(own, self._take, self.broken.append)

    def _take(self, message: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.taken.append(message)


@contextlib.contextmanager
def linked() -> Iterator[Linked]:
    made = Linked()
    with made.other:
        yield made
        made.link.close()
    made.link.close()


async def test_messages_before_the_end_are_taken_and_then_the_end_is_told():
    with linked() as it:
        it.other.sendall(frame(BEAT) + frame(TrimDone()))
        it.other.close()
        await until(lambda: bool(it.broken))
        assert it.taken == [BEAT, TrimDone()]
        assert it.broken == [None]


async def test_what_came_before_a_close_is_taken_and_no_end_is_told_for_it():
    with linked() as it:
        it.other.sendall(frame(BEAT))
        it.link.close()
        assert it.taken == [BEAT]
        assert it.broken == []


async def test_garbage_breaks_it_once_and_nothing_after_it_is_heard():
    with linked() as it:
        it.other.sendall(frame(BEAT) + b"\x00\x00\x00\x02\xc1\xc1" + frame(BEAT))
        await until(lambda: bool(it.broken))
        with contextlib.suppress(OSError):
            it.other.sendall(frame(TrimDone()))
        it.link.close()
        (why,) = it.broken
        assert "no message" in str(why)
        assert it.taken == []


async def test_a_message_that_cannot_be_taken_breaks_it_for_what_would_be_lost_with_it():
    with linked() as it:
        it.fails = KeyError("no such order")
        it.other.sendall(frame(BEAT))
        await until(lambda: bool(it.broken))
        it.fails = None
        it.link.close()
        (why,) = it.broken
        assert "KeyError: 'no such order'" in str(why)
        assert it.taken == []


async def test_a_worker_that_reads_nothing_is_broken_once_too_much_waits(monkeypatch):
    monkeypatch.setattr(link_module, "MOST_WAITING", 1_000_000)
    monkeypatch.setattr(link_module, "STUCK", 0.05)
    with linked() as it:
        async with asyncio.timeout(10):
            while not it.broken:
                it.link.send(Call(1, "encode", bytes(300_000)))
                await asyncio.sleep(0.01)
        it.link.send(Drop(1))
        assert it.broken == ["it does not read what it is sent"]


async def test_much_may_wait_for_a_worker_that_reads(monkeypatch):
    monkeypatch.setattr(link_module, "MOST_WAITING", 1_000_000)
    with linked() as it:
        sent = [Call(number, "encode", bytes(3_000_000)) for number in range(4)]
        for call in sent:
            it.link.send(call)
        whole = b"".join(map(frame, sent))
        got = await asyncio.to_thread(it.other.recv, len(whole), socket.MSG_WAITALL)
        assert got == whole
        assert it.broken == []


async def test_a_worker_that_sends_without_end_does_not_hold_the_event_loop_nor_a_close():
    with linked() as it:
        over = threading.Event()

        def flood() -> None:
            data = frame(BEAT) * 1000
            with contextlib.suppress(OSError):
                while not over.is_set():
                    it.other.sendall(data)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            rounds = 0
            async with asyncio.timeout(10):
                while len(it.taken) < 20_000:
                    await asyncio.sleep(0)
                    rounds += 1
            assert rounds >= 3
            it.link.close()
            assert it.broken == []
        finally:
            over.set()
            it.other.close()
            await asyncio.to_thread(thread.join)


async def test_what_cannot_be_sent_is_refused_and_the_rest_goes_on():
    with linked() as it:
        with pytest.raises(ValueError, match="surrogates"):
            it.link.send(Call(1, "\ud800", b""))
        it.link.send(Drop(1))
        assert it.other.recv(100) == frame(Drop(1))


async def test_nothing_is_sent_to_one_that_is_gone_and_that_is_no_fault():
    with linked() as it:
        it.other.close()
        for _ in range(3):
            it.link.send(Drop(1))
        await until(lambda: bool(it.broken))
        assert it.broken == [None]
