"""`mlxd run` shows an answer as it comes and says plainly when it does not come."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from cli_process import SCRIPT, clean_environ, mlxd, on_terminal
from fake_daemon import BREAK, DONE, HANG, chunk, error, event


@pytest.fixture
def ask(daemon, tmp_path):
    def ask(*args, stdin=b""):
        return mlxd("run", "qwen", *args, home=tmp_path, stdin=stdin, MLXD_URL=daemon.url)

    return ask


@pytest.fixture
def terminal(daemon, tmp_path):
    def terminal(*args, **options):
        return on_terminal("run", "qwen", *args, home=tmp_path, MLXD_URL=daemon.url, **options)

    return terminal


def messages(daemon):
    [(_, body)] = daemon.asked("POST")
    return [(turn["role"], turn["content"]) for turn in body["messages"]]


def test_the_answer_is_all_that_standard_output_has(ask):
    done = ask("Hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Hello there\n", b"")


def test_the_request_has_what_was_given_and_nothing_else(ask, daemon):
    ask("Hi", "--system", "Be brief.", "--max-tokens", "7", "--temperature", "0")
    [(path, body)] = daemon.asked("POST")
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "qwen",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "max_tokens": 7,
        "temperature": 0.0,
    }


def test_sampling_is_left_to_the_daemon_when_nothing_is_said(ask, daemon):
    ask("Hi")
    [(_, body)] = daemon.asked("POST")
    assert set(body) == {"model", "messages", "stream"}


def test_piped_text_is_the_prompt(ask, daemon):
    ask(stdin="Grüße\nzwei\n".encode())
    assert messages(daemon) == [("user", "Grüße\nzwei\n")]


def test_piped_text_follows_the_prompt(ask, daemon):
    ask("Summarise:", stdin=b"a text")
    assert messages(daemon) == [("user", "Summarise:\n\na text")]


def test_piped_bytes_that_are_no_text_are_refused(ask, daemon):
    done = ask(stdin=b"\xff\xfe\x00")
    assert (done.returncode, done.stderr) == (1, b"mlxd: standard input is not UTF-8 text\n")
    assert not daemon.requests


def test_an_answer_that_ends_in_a_new_line_gets_no_second_one(ask, daemon):
    daemon.chat = [chunk("one\n"), DONE]
    assert ask("Hi").stdout == b"one\n"


def test_an_empty_answer_prints_nothing(ask, daemon):
    daemon.chat = [event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}), DONE]
    done = ask("Hi")
    assert (done.returncode, done.stdout) == (0, b"")


def test_characters_and_lines_cut_between_reads_come_whole(ask, daemon):
    raw = b": loading 3%\n\n" + chunk("Grüße 😀") + event({"choices": [], "usage": {"total_tokens": 3}}) + DONE
    daemon.chat = [raw[place : place + 1] for place in range(len(raw))]
    assert ask("Hi").stdout.decode() == "Grüße 😀\n"


def test_text_appears_before_the_answer_is_complete(daemon, tmp_path):
    daemon.chat = [chunk("so far"), HANG]
    environ = clean_environ(tmp_path, MLXD_URL=daemon.url)
    process = subprocess.Popen(
        [SCRIPT, "run", "qwen", "Hi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    assert os.read(process.stdout.fileno(), 100) == b"so far"
    process.send_signal(2)
    rest, said = process.communicate(timeout=30)
    assert daemon.client_left.wait(10)
    assert (process.returncode, rest, said.strip()) == (1, b"\n", b"mlxd: interrupted")


def test_an_error_event_keeps_what_came_and_fails(ask, daemon):
    daemon.chat = [chunk("so far"), event(error("memory_ceiling", "out of memory; retry in a moment")), DONE]
    done = ask("Hi")
    assert (done.returncode, done.stdout) == (1, b"so far\n")
    assert done.stderr == b"mlxd: out of memory; retry in a moment (memory_ceiling)\n"


@pytest.mark.parametrize("end", [[], [BREAK], [b"data: {"], [event(error("x", "never finished"))[:-1]]])
def test_an_answer_without_its_end_fails(end, ask, daemon):
    daemon.chat = [chunk("so far"), *end]
    done = ask("Hi")
    assert (done.returncode, done.stdout) == (1, b"so far\n")
    assert b"its log says why" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("data", [b"data: nonsense\n\n", b"data: [1]\n\n", b'data: {"choices": 3}\n\n'])
def test_an_event_that_is_no_part_of_an_answer_fails(data, ask, daemon):
    daemon.chat = [data, DONE]
    done = ask("Hi")
    assert done.returncode == 1
    assert b"sent an event that is no part of an answer" in done.stderr


def test_an_unknown_model_fails_with_suggestions(daemon, ask):
    refusal = error("model_not_found", "there is no model 'qwne'", suggestions=["qwen", "qwen-2"])
    daemon.answers["POST", "/v1/chat/completions"] = (404, refusal)
    done = ask("Hi")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"mlxd: there is no model 'qwne' (model_not_found)\nmlxd: did you mean qwen or qwen-2?\n"


def test_suggestions_are_not_said_twice(daemon, ask):
    refusal = error("model_not_found", "there is no model 'q'; did you mean qwen?", suggestions=["qwen"])
    daemon.answers["POST", "/v1/chat/completions"] = (404, refusal)
    assert ask("Hi").stderr == b"mlxd: there is no model 'q'; did you mean qwen? (model_not_found)\n"


def test_an_answer_that_is_no_stream_fails(daemon, ask):
    daemon.answers["POST", "/v1/chat/completions"] = (200, {"choices": []})
    done = ask("Hi")
    assert done.returncode == 1
    assert b"instead of a stream" in done.stderr


def test_a_loading_note_passes_on_a_terminal(daemon, terminal):
    daemon.chat = [b": loading 41% eta 3s\n\n", chunk("Hello"), b": keep-alive\n\n", chunk("!"), DONE]
    with terminal("Hi") as shown:
        assert shown.end() == 0
    assert "\r\x1b[Kloading 41% eta 3s\r\x1b[KHello!\r\n" in shown.seen
    assert "keep-alive" not in shown.seen


def thought(text):
    return b"data: " + json.dumps({"choices": [{"delta": {"reasoning_content": text}}]}).encode() + b"\n\n"


def test_what_a_model_thinks_passes_on_a_terminal_and_is_no_part_of_the_answer(daemon, terminal, ask):
    daemon.chat = [thought("Let me\nsee"), thought(" now."), chunk("Hello"), DONE]
    with terminal("Hi") as shown:
        assert shown.end() == 0
    assert "thinking: Let me see now.\r\x1b[KHello\r\n" in shown.seen
    assert ask("Hi").stdout == b"Hello\n"


def test_a_model_cannot_send_control_sequences_to_the_terminal(daemon, terminal):
    daemon.chat = [chunk("a\x1b[2Jb\x9bc\r\n\td"), DONE]
    with terminal("Hi") as shown:
        assert shown.end() == 0
    assert shown.seen.replace("\r\n", "\n").expandtabs() == "a[2Jbc\n        d\n"


def test_a_file_gets_the_text_as_the_model_wrote_it(daemon, ask):
    daemon.chat = [chunk("a\x1b[2Jb"), DONE]
    assert ask("Hi").stdout == b"a\x1b[2Jb\n"


def test_a_chat_remembers_and_can_forget(daemon, terminal):
    with terminal("--system", "Be brief.") as shown:
        for count, line in enumerate(["one", "two", "/clear", "three", "/system", " /four", "/nonsense", ""], start=1):
            shown.wait_for(">>> ", count)
            shown.type(f"{line}\n")
        shown.type("\x04")
        assert shown.end() == 0
    said = [[turn["content"] for turn in body["messages"]] for _, body in daemon.asked("POST")]
    assert said == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "Hello there", "two"],
        ["Be brief.", "three"],
        ["three", "Hello there", "/four"],
    ]
    assert "unknown command /nonsense" in shown.text


def test_ctrl_c_ends_the_answer_and_not_the_chat(daemon, terminal):
    daemon.chat = [chunk("so far"), HANG]
    with terminal() as shown:
        shown.wait_for(">>> ")
        shown.type("one\n")
        shown.wait_for("so far")
        shown.interrupt()
        shown.wait_for(">>> ", 2)
        assert daemon.client_left.wait(10)
        daemon.chat = [chunk("fine"), DONE]
        shown.type("two\n")
        shown.wait_for(">>> ", 3)
        shown.type("/exit\n")
        assert shown.end() == 0
    [_, (_, second)] = daemon.asked("POST")
    assert [turn["content"] for turn in second["messages"]] == ["one", "so far", "two"]


def test_ctrl_c_at_the_prompt_gives_up_the_line(daemon, terminal):
    with terminal() as shown:
        shown.wait_for(">>> ")
        shown.type("half a li")
        shown.wait_for("half a li")
        shown.interrupt_until("ends the chat")
        shown.type("/exit\n")
        assert shown.end() == 0
    assert not daemon.asked("POST")


def test_a_failed_answer_leaves_the_chat_open_and_no_trace_in_it(daemon, terminal):
    daemon.chat = [event(error("engine_crashed", "its worker died"))]
    with terminal() as shown:
        shown.wait_for(">>> ")
        shown.type("one\n")
        shown.wait_for(">>> ", 2)
        daemon.chat = [chunk("fine"), DONE]
        shown.type("two\n")
        shown.wait_for(">>> ", 3)
        shown.type("\x04")
        assert shown.end() == 0
    assert "mlxd: its worker died (engine_crashed)" in shown.text
    [_, (_, second)] = daemon.asked("POST")
    assert [turn["content"] for turn in second["messages"]] == ["two"]


def test_a_chat_with_an_unknown_model_does_not_begin(daemon, tmp_path):
    with on_terminal("run", "nope", home=tmp_path, MLXD_URL=daemon.url) as shown:
        assert shown.end() == 1
    assert "there is no model 'nope'" in shown.text
    assert ">>>" not in shown.text
