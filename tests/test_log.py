"""Everything that is logged goes through one pipeline: one JSON object a line, or text on a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys

import pytest
import structlog

from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.log import adopt_library_loggers, configure_logging, set_log_level


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def own_logging():
    """Puts the process's logging back as it was."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [handler for handler in root.handlers if handler.name == "mlxd"]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_its_context():
    stream = io.StringIO()
    configure_logging("info", "auto", None, stream)
    structlog.contextvars.bind_contextvars(request_id="r-1")
    structlog.get_logger("mlxd").info("model.loaded", model="a\nb", seconds=float("nan"), odd="\ud800", data={1: {2}})
    [line] = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "model.loaded",
        "level": "info",
        "logger": "mlxd",
        "request_id": "r-1",
        "model": "a\nb",
        "seconds": "nan",
        "odd": "\\ud800",
        "data": {"1": [2]},
    }


def test_data_that_contains_itself_is_cut_off():
    stream = io.StringIO()
    configure_logging("info", "json", None, stream)
    loop = []
    loop.append(loop)
    structlog.get_logger().info("loop", loop=loop)
    assert lines(stream)[0]["event"] == "loop"


def test_another_level_counts_for_loggers_that_there_are():
    stream = io.StringIO()
    configure_logging("warning", "json", None, stream)
    own, library, chatty = structlog.get_logger("mlxd"), logging.getLogger("mlx_lm"), logging.getLogger("httpx")
    for level, told in (("warning", 0), ("debug", 3), ("info", 2), ("error", 0)):
        set_log_level(level)
        before = len(lines(stream))
        own.info("one")
        library.info("two")
        chatty.info("three")
        assert len(lines(stream)) - before == told, level


def test_the_standard_library_goes_the_same_way():
    stream = io.StringIO()
    configure_logging("info", "json", None, stream)
    structlog.contextvars.bind_contextvars(request_id="r-2")
    logging.getLogger("mlx_lm").warning("took %d steps", 3, extra={"model": "m"})
    [line] = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("took 3 steps", "warning", "mlx_lm")
    assert (line["request_id"], line["model"]) == ("r-2", "m")


def test_an_exception_is_structured_and_keeps_local_variables_out():
    stream = io.StringIO()
    configure_logging("info", "json", None, stream)
    prompt = "a secret prompt of somebody"
    try:
        int(prompt[2:8])
    except ValueError:
        structlog.get_logger().exception("request.failed")
        logging.getLogger("asyncio").exception("task failed")
    for line in lines(stream):
        assert line["exception"][0]["exc_type"] == "ValueError"
    assert "somebody" not in stream.getvalue()


def test_a_terminal_gets_text_and_keeps_local_variables_out():
    stream = Terminal()
    configure_logging("info", "auto", None, stream)
    prompt = "a secret prompt of somebody"
    try:
        int(prompt[2:8])
    except ValueError:
        structlog.get_logger().exception("request.failed", model="m")
    text = stream.getvalue()
    assert not text.startswith("{")
    assert "request.failed" in text
    assert "Traceback" in text
    assert "somebody" not in text


def test_a_forced_format_counts_more_than_the_terminal():
    stream, pipe = Terminal(), io.StringIO()
    configure_logging("info", "json", None, stream)
    structlog.get_logger().info("x")
    assert lines(stream)[0]["event"] == "x"
    configure_logging("info", "console", None, pipe)
    structlog.get_logger().info("x")
    assert "[info" in pipe.getvalue()
    assert "\x1b" not in pipe.getvalue()


def test_a_second_call_replaces_the_first():
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", "json", None, first)
    log = structlog.get_logger()
    log.info("one")
    configure_logging("warning", "json", None, second)
    log.info("two")
    log.warning("three")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["three"]


@pytest.mark.parametrize(("level", "seen"), [("debug", True), ("info", False), ("error", False)])
def test_the_access_log_is_seen_at_debug_only(level, seen):
    stream = io.StringIO()
    configure_logging(level, "json", None, stream)
    logging.getLogger("aiohttp.access").info("GET /")
    assert bool(lines(stream)) is seen


def test_a_broken_stream_does_not_break_the_caller():
    stream = io.StringIO()
    configure_logging("info", "json", None, stream)
    stream.close()
    structlog.get_logger().info("nobody reads this")


def test_a_file_gets_json_beside_a_terminal(tmp_path):
    file = tmp_path / "logs" / "mlxd.log"
    for _ in range(2):
        configure_logging("info", "auto", file, Terminal())
    structlog.get_logger().info("x", number=1)
    [line] = file.read_text().splitlines()
    assert json.loads(line)["number"] == 1


def test_a_file_may_be_all_that_is_written(tmp_path):
    stream = io.StringIO()
    configure_logging("info", "json", tmp_path / "mlxd.log", stream, only_file=True)
    structlog.get_logger().info("x")
    assert (stream.getvalue(), len((tmp_path / "mlxd.log").read_text().splitlines())) == ("", 1)
    configure_logging("info", "json", None, stream, only_file=True)
    structlog.get_logger().info("x")
    assert len(lines(stream)) == 1


def test_a_file_that_cannot_be_written_is_a_configuration_error(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(ConfigError, match=r"^log\.file: .*taken/mlxd\.log cannot be written"):
        configure_logging("info", "json", tmp_path / "taken" / "mlxd.log", io.StringIO())


def test_a_library_with_a_handler_of_its_own_joins_the_pipeline():
    stream, own = io.StringIO(), io.StringIO()
    configure_logging("info", "json", None, stream)
    logger = logging.getLogger("transformers")
    logger.addHandler(logging.StreamHandler(own))
    logger.propagate = False
    logger.setLevel(logging.WARNING)  # whoever loads a vision model has it quieter
    adopt_library_loggers()
    logger.warning("hm")
    assert own.getvalue() == ""
    assert lines(stream)[0]["event"] == "hm"


CHILD = """
import asyncio, logging, sys, threading, warnings
import structlog
from pathlib import Path
from mlxd.daemon.log import configure_logging
configure_logging("info", "auto", Path(sys.argv[1]))
log = structlog.get_logger()
log.info("daemon.started", port=1)
warnings.warn("old\\nthing")
logging.getLogger("lib").error("%d", "not a number")
threads = [threading.Thread(target=lambda n=n: [log.info("tick", n=n, text="x" * 3000) for _ in range(50)])
           for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
async def main():
    asyncio.get_running_loop().call_exception_handler({"message": "lost", "exception": ValueError("a\\nb")})
asyncio.run(main())
"""


def test_the_log_of_a_process_is_one_object_a_line(tmp_path):
    file = tmp_path / "mlxd.log"
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(file)], capture_output=True, text=True, check=True, timeout=60
    )
    for text in (child.stderr, file.read_text()):
        events = [json.loads(line) for line in text.splitlines()]
        assert len(events) == 204
        assert all({"event", "level", "timestamp"} <= event.keys() for event in events)
        [failed] = [event for event in events if event["event"] == "log.failed"]
        assert failed["logger"] == "lib"
    assert child.stdout == ""


@pytest.mark.parametrize("colors", [False, True])
def test_nothing_that_is_logged_steers_the_terminal_or_makes_a_line_of_its_own(colors):
    stream = Terminal() if colors else io.StringIO()
    configure_logging("info", "console", None, stream)
    evil = "\x1b]0;owned\x07\x9b2J\r\n2026 [info] forged"
    log = structlog.get_logger("mlxd")

    def fail():
        raise ValueError(evil)

    log.info("http.request", path=evil, plain="as it is")
    log.info(evil)
    logging.getLogger("library").warning("said %s", evil)
    try:
        fail()
    except ValueError:
        log.exception("failed")
    written = stream.getvalue()
    assert not re.search("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b[^[]", written)
    assert len([each for each in written.splitlines() if each.startswith("2026 [info] forged")]) <= 1
    assert "as it is" in written
    assert "\\x1b]0;owned" in written
