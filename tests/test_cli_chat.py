"""A chat in the terminal: its commands, what it remembers, and answers as formatted Markdown."""

from __future__ import annotations

import json
import re
import stat

import pytest
from cli_process import on_terminal
from fake_daemon import DONE, HANG, chunk, error
from hypothesis import given
from hypothesis import strategies as st
from tiny_vision import png

from mlxd.daemon.cli.markdown_screen import complete_blocks

USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 40, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 32}},
    "mlxd": {"queue_s": 1.5, "load_s": 1.25, "prefill_s": 0.1, "ttft_s": 1.4, "decode_tps": 52.31, "cancelled": False},
}
LAST = b"data: " + json.dumps(USAGE).encode() + b"\n\n"


@pytest.fixture
def chat(daemon, tmp_path):
    def chat(*args, **options):
        return on_terminal("run", "qwen", *args, home=tmp_path, MLXD_URL=daemon.url, **options)

    return chat


def talk(shown, *lines: str) -> None:
    """Type each line at a prompt of its own, and leave."""
    for count, line in enumerate([*lines, "/exit"], start=1):
        shown.wait_for(">>> ", count)
        shown.type(f"{line}\n")
    assert shown.end() == 0


def asked(daemon):
    return [body for _, body in daemon.asked("POST")]


def test_stats_tell_how_the_last_answer_came_about(daemon, chat):
    daemon.chat = [chunk("Hello"), LAST, DONE]
    with chat() as shown:
        talk(shown, "/stats", "hi", "/stats")
    assert "nothing was answered yet" in shown.text
    said = "40 tokens asked (32 cached), 7 answered, loaded in 1.2s, first token after 1.4s, 52.3 tokens/s"
    assert said in shown.text.replace("1.3s", "1.2s")
    assert asked(daemon)[0]["stream_options"] == {"include_usage": True}


def test_the_model_can_be_changed_and_an_unknown_one_is_not_taken(daemon, chat):
    daemon.answers["GET", "/v1/models/other"] = (200, {"id": "other"})
    daemon.answers["GET", "/v1/models/nope"] = (404, error("model_not_found", "there is no model 'nope'"))
    with chat() as shown:
        talk(shown, "/model", "one", "/model nope", "/model other", "two")
    assert "the model is qwen" in shown.text
    assert "there is no model 'nope'" in shown.text
    assert [body["model"] for body in asked(daemon)] == ["qwen", "other"]
    assert [turn["content"] for turn in asked(daemon)[1]["messages"]] == ["one", "Hello there", "two"]


def test_an_image_goes_with_the_next_question(daemon, chat, tmp_path):
    file = tmp_path / "a picture.png"
    file.write_bytes(png("red"))
    with chat() as shown:
        talk(shown, "/image", "/image nowhere.png", f"/image '{file}'", "what is it?", "and now?")
    assert "expected a file" in shown.text
    assert "nowhere.png cannot be read" in shown.text
    first, second = asked(daemon)
    assert [part["type"] for part in first["messages"][0]["content"]] == ["image_url", "text"]
    assert second["messages"][-1]["content"] == "and now?"


def test_several_lines_go_between_quotes(daemon, chat):
    with chat() as shown:
        shown.wait_for(">>> ")
        shown.type('"""/clear is a word\n')
        shown.wait_for("... ")
        shown.type('second"""\n')
        shown.wait_for(">>> ", 2)
        shown.type("/exit\n")
        assert shown.end() == 0
    assert asked(daemon)[0]["messages"][0]["content"] == "/clear is a word\nsecond"


def test_lines_come_back_in_the_next_chat_and_nobody_else_may_read_them(daemon, chat, tmp_path):
    with chat() as shown:
        talk(shown, "remember me")
    [file] = (tmp_path / ".local" / "state" / "mlxd").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with chat() as shown:
        shown.wait_for(">>> ")
        shown.type("\x1b[A\x1b[A")  # up, past /exit
        shown.wait_for("remember me")
        shown.type("\n")
        shown.wait_for(">>> ", 2)
        shown.type("\x04")
        assert shown.end() == 0
    assert [body["messages"][-1]["content"] for body in asked(daemon)] == ["remember me", "remember me"]


def test_without_history_nothing_is_kept(chat, tmp_path):
    with chat("--no-history") as shown:
        talk(shown, "a secret")
    assert not (tmp_path / ".local").exists()


def test_a_history_that_cannot_be_written_is_said_and_stops_nobody(chat, tmp_path):
    (tmp_path / ".local").write_text("in the way")
    with chat() as shown:
        talk(shown, "hi")
    assert "lines are not remembered" in shown.text
    assert "Hello there" in shown.text


def test_an_answer_is_formatted_and_a_plain_one_is_not(daemon, chat):
    daemon.chat = [chunk("# Ti"), chunk("tle\n\n- **bold**\n\n```py\nx = 1\n\ny"), chunk(" = 2\n```\n"), DONE]
    with chat() as shown:
        talk(shown, "hi")
    assert "**bold**" not in shown.text.split(">>> ")[1].replace("- **bold**", "", 1)
    assert "• bold" in shown.text
    with chat("--plain") as shown:
        talk(shown, "hi")
    assert "- **bold**\r\n\r\n```py\r\nx = 1" in shown.text


def test_a_model_cannot_send_control_sequences_or_hide_where_a_link_leads(daemon, chat):
    daemon.chat = [chunk("a\x1b]8;;evil\x07b [safe](https://evil.example)\n"), DONE]
    with chat() as shown:
        talk(shown, "hi")
    assert "\x1b]" not in shown.seen
    assert "https://evil.example" in shown.text


def test_a_long_block_shows_its_end_while_it_grows(daemon, chat):
    daemon.chat = [chunk("```\n" + "".join(f"line {number}\n" for number in range(200))), HANG]
    with chat() as shown:
        shown.wait_for(">>> ")
        shown.type("hi\n")
        shown.wait_for("line 199")
        shown.interrupt()
        shown.wait_for(">>> ", 2)
        shown.type("/exit\n")
        assert shown.end() == 0
    assert re.search(r"line 0 *\r\n", shown.text), "what came of it is printed whole"


LINES = st.lists(
    st.sampled_from(["", " ", "text", "- item", "```", "```py", "~~~", "````", "  ```", "# head", "    indented"]),
    max_size=20,
)


@given(LINES, st.randoms())
def test_blocks_are_the_same_however_their_text_comes(lines, random):
    text = "\n".join(lines)
    whole, rest = complete_blocks(text)
    assert "".join([*whole, rest]).split() == text.split()
    pieces, pending = [], ""
    at = 0
    while at < len(text):
        step = random.randint(1, 5)
        blocks, pending = complete_blocks(pending + text[at : at + step])
        pieces += blocks
        at += step
    assert "".join([*pieces, pending]).split() == text.split()
    assert [block for block in pieces if block.count("```") % 2] == [block for block in whole if block.count("```") % 2]


def test_blank_lines_within_code_end_no_block():
    assert complete_blocks("```py\na\n\nb\n```\n\nafter") == (["```py\na\n\nb\n```\n"], "after")
    assert complete_blocks("~~~\n```\n\n~~~\n\n") == (["~~~\n```\n\n~~~\n"], "")
    assert complete_blocks("one\n\ntwo\n\nthr") == (["one\n", "two\n"], "thr")


def test_html_and_the_targets_of_links_are_shown_as_they_are(daemon, chat):
    said = "Use `a` <b>bold</b>.\n\n<div>\n  kept\n</div>\n\nSee [it][1].\n\n[1]: https://example.org\n"
    daemon.chat = [chunk(said), DONE]
    with chat() as shown:
        talk(shown, "hi")
    for each in ("<b>bold</b>", "<div>", "kept", "</div>", "See [it][1].", "[1]: https://example.org"):
        assert each in shown.text, each


def test_a_line_that_starts_with_a_space_is_sent_whatever_it_says(daemon, chat):
    with chat() as shown:
        talk(shown, " /exit", " /clear")
    assert [body["messages"][-1]["content"] for body in asked(daemon)] == ["/exit", "/clear"]
