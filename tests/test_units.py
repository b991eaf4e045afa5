"""Sizes and durations are read as written, and text that is neither is refused with a reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxd.daemon.units import (
    MAX_DURATION,
    Size,
    format_bytes,
    format_duration,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (0, 0),
        (64_000_000, 64_000_000),
        ("1234", 1234),
        ("512MB", 512 * 10**6),
        ("24GiB", 24 * 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("2tb", 2 * 10**12),
        ("7B", 7),
        (" 3KiB ", 3072),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(written, count):
    assert parse_size(written) == Size(bytes=count)


def test_a_percentage_resolves_against_the_total():
    assert parse_size("80%").resolve(1000) == 800
    assert parse_size("33.3%") == Size(fraction=0.333)
    assert parse_size("64MB").resolve(1000) == 64_000_000


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (-1, "negative"),
        ("-5MB", "negative"),
        (True, "expected bytes"),
        (1.0, "expected bytes"),
        (math.nan, "expected bytes"),
        (math.inf, "expected bytes"),
        (None, "expected bytes"),
        ("", "expected bytes"),
        ("lots", "expected bytes"),
        ("1e3MB", "expected bytes"),
        ("٣MB", "expected bytes"),
        ("10G", '"G" is not one of'),
        ("10 parsecs", '"parsecs" is not one of'),
        ("101%", "0% to 100%"),
        ("-1%", "0% to 100%"),
        ("99999999TiB", "below 8 EiB"),
        (10**400, "below 8 EiB"),
        ("9" * 5000, "expected bytes"),
    ],
)
def test_what_is_no_size_is_refused(written, reason):
    with pytest.raises(ValueError, match=reason):
        parse_size(written)


def test_a_percentage_is_refused_where_there_is_no_total():
    with pytest.raises(ValueError, match='"%" is not one of'):
        parse_size("5%", percent=False)


@pytest.mark.parametrize("wrong", [{}, {"bytes": 1, "fraction": 0.5}])
def test_a_size_has_bytes_or_a_fraction(wrong):
    with pytest.raises(ValueError, match="either"):
        Size(**wrong)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0.0),
        (90, 90.0),
        (0.5, 0.5),
        ("15", 15.0),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("2 m", 120.0),
        ("1.5h", 5400.0),
        ("never", None),
        ("Never", None),
    ],
)
def test_a_duration_is_seconds_or_a_number_with_a_unit(written, seconds):
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (-1, "negative"),
        ("-3s", "negative"),
        (math.nan, "expected seconds"),
        (math.inf, "expected seconds"),
        (-math.inf, "expected seconds"),
        (True, "expected seconds"),
        (None, "expected seconds"),
        ([], "expected seconds"),
        ("", "expected seconds"),
        ("s", "expected seconds"),
        ("nan", "expected seconds"),
        ("inf", "expected seconds"),
        ("1e5", "expected seconds"),
        ("1m1h", "expected seconds"),
        ("5d", '"d" is not one of ms, s, m, h'),
        (MAX_DURATION + 1, "10 years"),
        (10**400, "10 years"),
        ("999999999999h", "10 years"),
    ],
)
def test_what_is_no_duration_is_refused(written, reason):
    with pytest.raises(ValueError, match=reason):
        parse_duration(written)


@given(st.integers(0, 2**63 - 1))
def test_a_size_in_bytes_is_read_back_from_its_text(count):
    assert parse_size(str(Size(bytes=count))) == Size(bytes=count)


@given(st.integers(0, 10_000))
def test_a_percentage_is_read_back_from_its_text(hundredths):
    size = parse_size(f"{hundredths / 100}%")
    assert parse_size(str(size)) == size


@given(st.integers(0, int(MAX_DURATION) * 1000))
def test_a_duration_in_milliseconds_is_read_back_from_its_text(milliseconds):
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text(max_size=12) | st.floats() | st.integers())
def test_whatever_is_written_is_read_or_refused_with_an_expectation(written):
    for parse in (parse_size, parse_duration):
        assert _outcome(parse, written) in {"read", "expected"}


def _outcome(parse, written):
    try:
        parse(written)
    except ValueError as error:
        return str(error).split(maxsplit=1)[0]
    return "read"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "never"),
        (0, "0s"),
        (0.25, "250ms"),
        (0.9999, "1s"),
        (59.9999, "1m"),
        (61.5, "1m1.5s"),
        (5400, "1h30m"),
        (90061, "25h1m1s"),
        (-5, "-5s"),
    ],
)
def test_a_duration_is_written_for_people(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_are_written_for_people(count, text):
    assert format_bytes(count) == text
