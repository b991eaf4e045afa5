"""The last lines of the log: bounded, numbered, and read while they come from any thread."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading

from mlxd.daemon.log_tail import LINE_BYTES, LogTail, TailHandler
from mlxd.daemon.numbered_events import TAKEN_BYTES

INFO, ERROR = logging.INFO, logging.ERROR


def line(event: str, **fields: object) -> bytes:
    return json.dumps({"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": event, **fields}).encode()


def events(data: bytes) -> list[tuple[int, str]]:
    """Number and event of each server-sent event."""
    found = []
    for block in data.decode().strip().split("\n\n"):
        number, kind, said = block.split("\n")
        content = json.loads(said.removeprefix("data: "))
        assert kind == "event: log"
        assert number == f"id: {content['seq']}"
        found.append((content["seq"], content["event"]))
    return found


def test_the_last_lines_come_oldest_first_and_by_their_level():
    tail = LogTail(first=10)
    for number, level in enumerate((INFO, ERROR, INFO, ERROR, INFO)):
        tail.add(level, line(f"e{number}"))
    assert [each.number for each in tail.last(3, INFO)] == [13, 14, 15]
    assert [json.loads(each.numbered()) for each in tail.last(9, ERROR)] == [
        {"seq": 12, **json.loads(line("e1"))},
        {"seq": 14, **json.loads(line("e3"))},
    ]


def test_old_lines_go_when_there_are_too_many_bytes():
    tail = LogTail(first=0, kept_bytes=10 * len(line("same")))
    for _ in range(100):
        tail.add(INFO, line("same"))
    assert [each.number for each in tail.last(1000, INFO)] == list(range(91, 101))


def test_of_a_line_that_is_too_long_the_head_is_kept():
    tail = LogTail()
    tail.add(ERROR, line("huge", model="m", request_id="r", text="x" * LINE_BYTES))
    (kept,) = tail.last(1, INFO)
    said = json.loads(kept.data)
    assert (said["event"], said["model"], said["request_id"]) == ("huge", "m", "r")
    assert "bytes" in said["left_out"]
    tail.add(ERROR, line("e" * LINE_BYTES))
    assert len(tail.last(1, INFO)[0].data) < 1000


async def test_a_reader_gets_what_comes_and_what_it_missed():
    tail = LogTail(first=0)
    tail.add(INFO, line("before"))
    with tail.reader(None, INFO) as new, tail.reader(0, INFO) as back, tail.reader(99, INFO) as stranger:
        assert new.take() == b""
        assert events(back.take()) == events(stranger.take()) == [(1, "before")]
        threading.Thread(target=tail.add, args=(INFO, line("after"))).start()
        for reader in (new, back, stranger):
            async with asyncio.timeout(10):
                while not (data := reader.take()):
                    await reader.wait()
            assert events(data) == [(2, "after")]


async def test_a_reader_of_errors_is_not_told_of_less():
    tail = LogTail(first=0)
    with tail.reader(None, ERROR) as reader:
        tail.add(INFO, line("no"))
        assert reader.take() == b""
        tail.add(ERROR, line("yes"))
        assert events(reader.take()) == [(2, "yes")]


async def test_a_reader_that_is_far_behind_gets_it_in_pieces_and_all_of_it():
    tail = LogTail(first=0)
    with tail.reader(None, INFO) as reader:
        for number in range(2000):
            tail.add(INFO, line(f"e{number}", filler="x" * 200))
        seen = []
        while data := reader.take():
            assert len(data) < 2 * TAKEN_BYTES
            seen += events(data)
    assert [number for number, _ in seen] == list(range(1, 2001))


async def test_many_threads_lose_no_line():
    tail = LogTail(first=0)
    with tail.reader(None, INFO) as reader:
        threads = [
            threading.Thread(target=lambda: [tail.add(INFO, line("e")) for _ in range(500)], daemon=True)
            for _ in "abcd"
        ]
        for thread in threads:
            thread.start()
        seen: list[tuple[int, str]] = []
        async with asyncio.timeout(20):
            while len(seen) < 2000:
                await reader.wait()
                data = reader.take()
                seen += events(data) if data else []
    assert [number for number, _ in seen] == list(range(1, 2001))


async def test_the_end_wakes_whoever_waits():
    tail = LogTail()
    with tail.reader(None, INFO) as reader:
        ended = []
        reader.on_close = lambda: ended.append(True)
        while reader.take():
            pass
        waiting = asyncio.create_task(reader.wait())
        await asyncio.sleep(0)
        tail.close()
        async with asyncio.timeout(10):
            await waiting
        assert (reader.ended, ended) == (True, [True])
    tail.add(INFO, line("after the end"))


def test_a_reader_whose_event_loop_is_gone_harms_nobody():
    tail = LogTail()

    async def leave() -> None:
        reading = tail.reader(None, INFO)
        reading.__enter__()

    asyncio.run(leave())
    tail.add(INFO, line("on"))
    assert len(tail.last(1, INFO)) == 1


def test_what_cannot_be_formatted_is_a_line_that_says_so():
    class Broken(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            raise ValueError(record.name)

    tail = LogTail()
    TailHandler(tail, Broken()).handle(logging.LogRecord("x.y", INFO, "f", 1, "m", None, None))
    (kept,) = tail.last(1, ERROR)
    assert json.loads(kept.data)["event"] == "log.failed"
    assert len(tail.last(10, INFO)) == 1


def test_a_finalizer_that_logs_while_a_line_is_added_or_read_stops_nothing():
    tail = LogTail(first=0, kept_bytes=20_000)

    class Dropped:
        def __init__(self) -> None:
            self.me = self  # only the collector finds it, wherever that happens to run

        def __del__(self) -> None:
            tail.add(INFO, line("dropped"))

    def use() -> None:
        seen, number = tail.after(0, INFO), 0
        for _ in range(3000):
            Dropped()
            tail.add(INFO, line("added"))
            assert tail.last(50, INFO)
            number, seen = tail.after(number, INFO)
        gc.collect()
        done.append(seen)

    done: list[object] = []
    before = gc.get_threshold()
    worker = threading.Thread(target=use, daemon=True)
    try:
        gc.set_threshold(7, 1000, 1000)
        worker.start()
        worker.join(30)
    finally:
        gc.set_threshold(*before)
    assert done
    numbers = [each.number for each in tail.last(10_000, INFO)]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) == 6000
