"""Bytes that are no sane JSON object are refused, whatever they are."""

import pytest

from mlxd.daemon.api.body import MAX_DEPTH, decode_object
from mlxd.daemon.api.refusals import InvalidField

NOT_AN_OBJECT = [
    b"",
    b" ",
    b"null",
    b"[]",
    b'"text"',
    b"3",
    b"{",
    b'{"a": 1',
    b'{"a": 1} x',
    b"{'a': 1}",
    b'{"a": 1,}',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": -Infinity}',
    b'{"a": 1e999}',
    b'{"a": ' + b"9" * 6000 + b"}",
    b'{"a": "\xff"}',
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\\ud800"}',
    b'{"a": "\x00"}',
    b"\xff\xfe{\x00}\x00",
    b'{"a": ' + b"[" * 100_000,
    b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
    b'{"a":' * 70 + b"1" + b"}" * 70,
]


@pytest.mark.parametrize("raw", NOT_AN_OBJECT, ids=lambda raw: repr(raw[:24]))
def test_a_body_that_is_no_sane_json_object_is_refused(raw):
    with pytest.raises(InvalidField):
        decode_object(raw)


def test_nesting_up_to_the_limit_is_taken():
    deepest = b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert decode_object(deepest)


def test_a_byte_order_mark_is_skipped_and_of_equal_names_the_last_one_counts():
    assert decode_object(b'\xef\xbb\xbf{"a": 1, "a": 2}') == {"a": 2}
