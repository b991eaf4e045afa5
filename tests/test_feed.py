"""The feed: numbers without gaps, whoever reads, however slowly, and whatever was before."""

from __future__ import annotations

import asyncio
import json

import pytest

from mlxd.daemon.feed import Feed
from mlxd.daemon.numbered_events import TAKEN_BYTES


class Clock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def feed_of(first=100, **options):
    """A feed whose snapshots tell what was published last."""
    feed = Feed(first=first, **options)
    feed.snapshot = lambda: {"world": "now"}
    return feed


def parse(data):
    """Name, number and data of each event; the number is the same in the id and in the data."""
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        number, name, text = (line.partition(": ")[2] for line in block.split("\n"))
        shown = json.loads(text)
        assert shown["seq"] == int(number)
        found.append((name, int(number), shown))
    return found


def everything(reader):
    found = []
    while data := reader.take():
        found += parse(data)
    return found


def names_and_numbers(events):
    return [(name, number) for name, number, _ in events]


def test_a_reader_gets_a_snapshot_then_every_event_with_the_next_number():
    feed = feed_of()
    with feed.reader() as reader:
        [(name, start, shown)] = everything(reader)
        assert (name, shown["world"]) == ("snapshot", "now")
        for item in "abc":
            feed.publish("model", {"id": item})
        assert names_and_numbers(everything(reader)) == [("model", start + step) for step in (1, 2, 3)]


def test_events_say_what_was_published_under_their_name():
    feed = feed_of()
    with feed.reader() as reader:
        everything(reader)
        feed.publish("decision", {"seq": 7, "kind": "load"})
        [(_, number, shown)] = everything(reader)
    assert shown == {"seq": number, "decision": {"seq": 7, "kind": "load"}}


def test_a_reader_that_comes_back_gets_what_it_missed_and_no_snapshot():
    feed = feed_of()
    with feed.reader() as reader:
        [(_, start, _)] = everything(reader)
    feed.publish("model", 1)
    feed.publish("request", 2)
    with feed.reader(since=start) as reader:
        assert names_and_numbers(everything(reader)) == [("model", start + 1), ("request", start + 2)]
    with feed.reader(since=start + 2) as reader:
        assert everything(reader) == []


def test_a_reader_that_joins_late_starts_from_now():
    feed = feed_of()
    with feed.reader() as early:
        everything(early)
        feed.publish("model", 1)
        with feed.reader() as late:
            feed.publish("model", 2)
            [(name, number, _)] = everything(late)
            feed.publish("model", 3)
            assert names_and_numbers(everything(late)) == [("model", number + 1)]
        assert name == "snapshot"
        assert [shown["model"] for _, _, shown in everything(early)] == [1, 2, 3]


def test_what_a_snapshot_publishes_comes_before_it():
    feed = feed_of()
    with feed.reader() as early:
        [(_, start, _)] = everything(early)
        feed.snapshot = lambda: feed.publish("model", "noticed") or {}
        with feed.reader() as late:
            assert names_and_numbers(everything(late)) == [("snapshot", start + 1)]
        assert names_and_numbers(everything(early)) == [("model", start + 1)]


@pytest.mark.parametrize("since", [0, 99, 100, 101, 1_000, 10**17])
def test_a_number_of_an_earlier_daemon_or_from_the_future_gets_a_snapshot(since):
    feed = feed_of()
    with feed.reader(since=since) as reader:
        assert [name for name, _, _ in everything(reader)] == ["snapshot"]


def test_two_daemons_do_not_share_numbers():
    starts = set()
    for _ in range(4):
        feed = Feed()
        with feed.reader() as reader:
            [(_, start, _)] = everything(reader)
        for number in starts:
            with feed.reader(since=number) as reader:
                assert [name for name, _, _ in everything(reader)] == ["snapshot"]
        starts.add(start)
    assert len(starts) == 4
    assert max(starts) < 2**53, "a number is exact in every JSON reader"


def test_a_reader_that_stands_still_gets_a_new_snapshot_and_the_others_lose_nothing():
    feed = feed_of(ring_bytes=4000)
    with feed.reader() as quick, feed.reader() as slow:
        [(_, start, _)], seen = everything(quick), []
        everything(slow)
        for number in range(5000):
            feed.publish("model", {"id": number})
            seen += everything(quick)
        assert names_and_numbers(seen) == [("model", start + step) for step in range(1, 5001)]
        assert names_and_numbers(everything(slow)) == [("snapshot", start + 5000)]
        feed.publish("model", "next")
        assert names_and_numbers(everything(slow)) == [("model", start + 5001)]


def test_what_is_kept_for_readers_is_bounded_in_bytes():
    feed = feed_of(ring_bytes=10_000)
    with feed.reader() as reader:
        [(_, start, _)] = everything(reader)
        for _ in range(2000):
            feed.publish("model", "x" * 100)
        with feed.reader(since=start + 1990) as back:
            kept = b"".join(iter(back.take, b""))
        with feed.reader(since=start + 1900) as too_late:
            assert [name for name, _, _ in everything(too_late)] == ["snapshot"]
    assert [number for _, number, _ in parse(kept)] == [*range(start + 1991, start + 2001)]


def test_an_event_that_is_larger_than_all_that_is_kept_costs_a_snapshot():
    feed = feed_of(ring_bytes=1000)
    with feed.reader() as reader:
        [(_, start, _)] = everything(reader)
        feed.publish("model", "x" * 2000)
        assert names_and_numbers(everything(reader)) == [("snapshot", start + 1)]


def test_a_reader_takes_a_bounded_piece_at_a_time():
    feed = feed_of()
    with feed.reader() as reader:
        everything(reader)
        for _ in range(10):
            feed.publish("model", "x" * (TAKEN_BYTES // 2))
        pieces = [len(parse(data)) for data in iter(reader.take, b"")]
    assert pieces == [2] * 5


def test_events_are_kept_a_while_for_a_reader_that_lost_its_connection():
    clock = Clock()
    feed = feed_of(linger=60, clock=clock)
    with feed.reader() as reader:
        [(_, start, _)] = everything(reader)
    clock.now += 60
    feed.publish("model", 1)
    with feed.reader(since=start) as reader:
        assert names_and_numbers(everything(reader)) == [("model", start + 1)]


@pytest.mark.parametrize("happens", [True, False])
def test_after_a_while_without_readers_nothing_is_kept_and_a_snapshot_closes_the_gap(happens):
    clock = Clock()
    feed = feed_of(linger=60, clock=clock)
    with feed.reader() as reader:
        [(_, start, _)] = everything(reader)
    clock.now += 61
    if happens:
        feed.publish("model", "unseen")
        assert not feed.is_wanted()
    with feed.reader(since=start) as reader:
        [(name, number, _)] = everything(reader)
        assert name == "snapshot"
        assert number > start
        feed.publish("model", 1)
        assert names_and_numbers(everything(reader)) == [("model", number + 1)]


def test_without_any_reader_nothing_is_wanted():
    feed = feed_of()
    assert not feed.is_wanted()
    with feed.reader():
        assert feed.is_wanted()
        assert feed.readers == 1
    assert feed.readers == 0


async def test_a_reader_waits_for_the_next_event():
    feed = feed_of()
    with feed.reader() as reader:
        everything(reader)
        waiting = asyncio.ensure_future(reader.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.publish("model", 1)
        await waiting
        assert len(everything(reader)) == 1


async def test_the_end_wakes_every_reader_and_nothing_follows_it():
    feed = feed_of()
    told = []
    with feed.reader() as one, feed.reader() as other:
        one.on_close = lambda: told.append("one")
        everything(one)
        everything(other)
        waiting = [asyncio.ensure_future(reader.wait()) for reader in (one, other)]
        await asyncio.sleep(0)
        feed.publish("model", "last")
        feed.close()
        feed.close()
        await asyncio.gather(*waiting)
        feed.publish("model", "too late")
        assert [shown["model"] for _, _, shown in everything(one)] == ["last"]
        assert one.ended
        await other.wait()
    assert told == ["one"]
