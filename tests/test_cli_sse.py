"""Server-sent events come whole, whatever the pieces of bytes are."""

from __future__ import annotations

import pytest

from mlxd.daemon.cli.sse import Comment, Message, SseParser


def parse(*chunks: bytes) -> list[Comment | Message]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


STREAM = ': loading 41% eta 3s\r\n\r\ndata: {"é": "😀"}\n\nevent: error\rdata: a\rdata: b\r\rdata:c\n\n'.encode()
EVENTS = [
    Comment("loading 41% eta 3s"),
    Message("message", '{"é": "😀"}'),
    Message("error", "a\nb"),
    Message("message", "c"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, len(STREAM)])
def test_events_do_not_depend_on_how_the_bytes_are_cut(size):
    assert parse(*(STREAM[start : start + size] for start in range(0, len(STREAM), size))) == EVENTS


def test_every_single_cut_gives_the_same_events():
    for cut in range(len(STREAM)):
        assert parse(STREAM[:cut], STREAM[cut:]) == EVENTS


def test_an_event_without_its_blank_line_is_not_given():
    assert parse(b"data: whole\n\ndata: cut\n") == [Message("message", "whole")]


def test_only_the_first_space_belongs_to_the_format():
    assert parse(b"data:  two\n\n") == [Message("message", " two")]


def test_unknown_fields_and_a_byte_order_mark_are_passed_over():
    assert parse(b"\xef\xbb\xbfid: 1\nretry: 5\ndata: x\nnonsense\n\n") == [Message("message", "x")]


def test_bytes_that_are_not_utf8_do_not_end_the_stream():
    assert parse(b"data: \xff\n\n") == [Message("message", "�")]


def test_a_blank_line_alone_is_no_event():
    assert parse(b"\n\n\n:\n\n") == [Comment("")]
