"""Messages between daemon and workers: every one comes back as it was, however it is cut, and garbage is refused."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_strategies import messages

from mlxd.engines import types
from mlxd.engines.worker.frames import (
    HEADER,
    MOST_BYTES,
    BadFrame,
    Frames,
    frame,
    from_json,
    to_json,
)
from mlxd.engines.worker.protocol import protocol
from mlxd.engines.worker.to_daemon import Beat, Hello, Reply, ToDaemon
from mlxd.engines.worker.to_worker import Drop, ToWorker

DIRECTIONS = [ToDaemon, ToWorker]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER, "big") + body


@pytest.mark.parametrize("direction", DIRECTIONS, ids=["to_daemon", "to_worker"])
def test_every_message_comes_back_as_it_was_wherever_it_is_cut(direction):
    @given(st.lists(messages(direction), min_size=1, max_size=3), st.randoms(use_true_random=False))
    def comes_back(sent, cuts: random.Random):
        data = b"".join(map(frame, sent))
        places = sorted(cuts.sample(range(len(data) + 1), min(5, len(data))))
        frames = Frames(direction)
        got = []
        for start, end in zip([0, *places], [*places, len(data)], strict=True):
            got += frames.feed(data[start:end])
        assert got == sent

    comes_back()


@pytest.mark.parametrize("direction", DIRECTIONS, ids=["to_daemon", "to_worker"])
def test_garbage_is_a_message_or_a_bad_frame_and_nothing_else(direction):
    @given(st.binary(max_size=40), st.integers(0x90, 0x9F), st.integers(1, 20), st.booleans())
    def is_refused(body, array, tag, like_a_message):
        body = bytes([array, tag]) + body if like_a_message else body
        with contextlib.suppress(BadFrame):
            Frames(direction).feed(framed(body))

    is_refused()


@pytest.mark.parametrize(
    "body",
    [
        b"\x93\x0e\x01" + b"\x91" * 100_000,
        b"\x93\x0e\x01\xdd\xff\xff\xff\xff",
        b"\x93\x0e\x01\xdf\xff\xff\xff\xff",
        b"\x93\x0e\x01\xc6\xff\xff\xff\xff",
        b"\x93\x0e\x01\xa2\xff\xff",
        b"",
    ],
    ids=["deep", "huge_array", "huge_map", "huge_bytes", "no_text", "nothing"],
)
def test_hostile_messages_are_bad_frames(body):
    with pytest.raises(BadFrame):
        Frames(ToDaemon).feed(framed(body))


def test_a_length_that_nothing_has_is_refused_before_it_is_waited_for():
    with pytest.raises(BadFrame, match="bytes"):
        Frames(ToDaemon).feed((MOST_BYTES + 1).to_bytes(HEADER, "big"))


@pytest.mark.parametrize("value", [2**64, "\ud800", object()], ids=["number", "surrogate", "object"])
def test_what_cannot_cross_is_refused_where_it_is_sent(value):
    with pytest.raises(ValueError, match=r"cross|surrogates"):
        frame(Reply(1, value))


def test_a_long_message_leaves_no_memory_behind():
    data = frame(Reply(1, bytes(30_000_000))) + frame(Beat(0.0, 1, 2, 3))
    frames = Frames(ToDaemon)
    tracemalloc.start()
    try:
        got = [
            type(message) for start in range(0, len(data), 1 << 18) for message in frames.feed(data[start:][: 1 << 18])
        ]
        assert got == [Reply, Beat]
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["é" * 1000, "\U0001f600" * 1000, "\ud83d", "\ud83d\ude00", "a\x00b\u2028"])
def test_text_crosses_as_it_is_and_gets_hardly_longer(text):
    data = to_json([text])
    assert from_json(data) == [text]
    assert len(data) < len(text.encode("utf-8", "surrogatepass")) + 20


def test_the_protocol_is_the_same_in_every_process_and_another_for_other_messages(monkeypatch):
    program = "from mlxd.engines.worker.protocol import protocol; print(protocol())"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = protocol()
    assert there.stdout.strip() == ours

    found = set()
    for others in (types.EngineLimits, types.LoadProgress):
        monkeypatch.setattr("mlxd.engines.worker.protocol.ToWorker", ToWorker | others)
        found.add(protocol())
    assert len(found | {ours}) == 3


def test_messages_of_the_other_direction_are_bad_frames():
    with pytest.raises(BadFrame):
        Frames(ToWorker).feed(frame(Hello("x")) + frame(Drop(1)))
