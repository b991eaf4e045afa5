"""What a worker prints and logs: kept in part, logged in part, and never in the way."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from mlxd.engines.worker.log_lines import _Lines, log_to
from mlxd.engines.worker.log_relay import RATE, REPORT, STRETCH, LogRelay
from mlxd.engines.worker.output import KEPT_LINES, LONGEST_LINE, Output
from mlxd.engines.worker.to_daemon import LogLine

LEVELS = st.integers(-10, 120)
NAMES = st.sampled_from(
    ["self", "level", "event", "logger", "timestamp", "exc_info", "stack_info", "_record", "_from_structlog", "model"]
) | st.text(max_size=5)


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Printed:
    """An output, and what it told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.left_out = 0
        self.clock = Clock()
        self.output = Output(self.lines.append, self._leave_out, self.clock)

    def _leave_out(self, count: int) -> None:
        self.left_out += count


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_lines_are_the_same_however_they_are_cut(pieces):
    it = Printed()
    for piece in pieces:
        it.output.feed(piece)
    it.output.close()
    whole = [line.decode(errors="replace").rstrip() for line in b"".join(pieces).split(b"\n")]
    assert it.lines == [line for line in whole if line]


def test_the_first_and_the_last_lines_of_a_burst_are_kept():
    it = Printed()
    it.output.feed(b"from another time\n")
    it.clock.now += 60
    for number in range(90):
        it.output.feed(b"line %d\n" % number)
    kept = it.output.kept
    assert kept[:KEPT_LINES] == tuple(f"line {number}" for number in range(KEPT_LINES))
    assert kept[KEPT_LINES:] == tuple(f"line {number}" for number in range(90 - KEPT_LINES, 90))


def test_of_a_line_that_never_ends_the_beginning_is_kept_and_no_memory_taken():
    it = Printed()
    it.output.feed(b"it began so ")
    for _ in range(1000):
        it.output.feed(b"x" * 65536)
    assert len(it.output._begun) < 10 * LONGEST_LINE
    it.output.close()
    (line,) = it.lines
    assert line.startswith("it began so xxx")
    assert len(line) == LONGEST_LINE


def test_of_very_many_lines_at_once_most_are_only_counted():
    it = Printed()
    it.output.feed(b"\n".join(b"%d" % number for number in range(30_000)) + b"\n")
    assert len(it.lines) + it.left_out == 30_000
    assert len(it.lines) == 100
    assert (it.lines[0], it.lines[-1]) == ("0", "29999")


def test_a_flood_is_logged_in_part_and_the_rest_is_counted():
    clock = Clock()
    with structlog.testing.capture_logs() as logs:
        relay = LogRelay("m", lambda: 7, clock)
        for _ in range(5000):
            relay.output("again")
            relay.line(LogLine(logging.WARNING, "x", "and again", b"{}"))
        assert len(logs) == STRETCH
        clock.now += REPORT
        relay.report()
        relay.report()
        assert logs[STRETCH:] == [
            {"event": "worker.lines_dropped", "log_level": "warning", "model": "m", "pid": 7, "lines": 10_000 - STRETCH}
        ]
        for _ in range(5000):
            relay.output("again")
        assert len(logs) == STRETCH + 1 + REPORT * RATE
        relay.close()
        assert logs[-1]["lines"] == 5000 - REPORT * RATE


def test_any_line_can_be_logged_whatever_its_fields_are_called():
    with structlog.testing.capture_logs() as logs:
        relay = LogRelay("m", lambda: 7, lambda: 10.0 * len(logs))

        @given(LEVELS, st.text(max_size=9), st.dictionaries(NAMES, st.none() | st.integers() | st.text(max_size=3)))
        def is_logged(level, event, fields):
            relay.line(LogLine(level, "its.logger", event, json.dumps(fields).encode()))
            line = logs[-1]
            assert line["event"] == event
            assert line["log_level"] in {"debug", "info", "warning", "error", "critical"}
            assert line["model"] == fields.get("model", "m")

        is_logged()


class Sent:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []

    def send(self, line: Any) -> None:
        self.lines.append(line)


def test_a_library_that_logs_what_cannot_be_formatted_goes_on():
    sent = Sent()
    logger = logging.getLogger("a.library")
    handler = _Lines(sent)  # type: ignore[arg-type] - it only sends
    logger.addHandler(handler)
    logger.propagate = False
    try:
        logger.warning("%d of %s", "x", "y")
        logger.error("fine \ud800")
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    broken, fine = sent.lines
    assert broken.event == "log.failed"
    assert "TypeError" in json.loads(broken.fields)["error"]
    assert fine.event == "fine \\ud800"


@pytest.fixture
def own_logging():
    """Logging as it was, afterwards."""
    root, config = logging.getLogger(), structlog.get_config()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.configure(**config)


@pytest.mark.usefixtures("own_logging")
def test_a_workers_own_lines_cross_with_their_fields_and_without_local_variables():
    sent = Sent()
    log_to(sent, logging.INFO)  # type: ignore[arg-type] - it only sends
    log = structlog.stdlib.get_logger("mlxd.engines.x")

    def fail(secret: str) -> None:
        raise ValueError("wrong")

    try:
        fail("the prompt of somebody")
    except ValueError:
        log.exception("it.broke", number=3, odd=object, text="\ud800")
    log.debug("too.small")
    (line,) = sent.lines
    fields = json.loads(line.fields)
    assert (line.level, line.logger, line.event) == (logging.ERROR, "mlxd.engines.x", "it.broke")
    assert fields["number"] == 3
    assert "ValueError: wrong" in fields["exception"]
    assert fields["exception"].count("the prompt of somebody") == 1  # where it stands in this file
