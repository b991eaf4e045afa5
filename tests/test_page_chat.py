"""The page's playground in a browser: what is sent, what is shown of the answer, and how it is stopped."""

from __future__ import annotations

import re

import pytest
from daemon_faults import IN_THREADS, hold_load, let_go
from daemon_process import daemon
from page_browser import press, watched
from page_calls import Calls
from playwright.sync_api import expect
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model, place_models
from tiny_vision import png, tiny_vision_model

HOSTILE = ("<img src=x ", "onerror=alert(1)>", " said", " it.\n", "```python\n", "print('<b>')\n", "```\n", "Done.")
THOUGHT = ("<think>", "Let me", " see.", "</think>", "It is", " four.")


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("models")
    place_models(folder, {"endless": tiny_model, "held": tiny_model, "seer": tiny_vision_model("qwen2_vl")})
    build_reciting_model(folder / "poet", HOSTILE)
    build_reciting_model(folder / "thinker", THOUGHT, template=TOOL_TEMPLATE, added=ANSWER_MARKERS)
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory, browser, models):
    config = '[server]\nkeepalive_interval = "50ms"\n'
    with daemon(tmp_path_factory.mktemp("daemon"), models, config, environ=IN_THREADS) as running:
        yield running.url


@pytest.fixture
def page(browser, url):
    with watched(browser, f"{url}/#playground", allowed=("status of 404",)) as opened:
        yield opened


@pytest.fixture
def say(page):
    """Sends a text to a model and gives the element of the answer."""

    def send(model, words):
        page.locator("#chat-model").select_option(model)
        page.get_by_role("textbox", name="Message").fill(words)
        page.get_by_role("textbox", name="Message").press("Enter")
        return page.get_by_role("article", name="assistant").last

    return send


def test_an_answer_is_text_with_its_code_apart_and_its_times_and_tokens(page, say):
    answer = say("poet", "Are you <b>safe</b>?")
    expect(answer.locator(".timings")).to_have_text(re.compile(r"first token .* tok/s .* \+ 9 tokens$"))
    assert answer.locator(".said").last.locator("> *").first.inner_text() == "<img src=x onerror=alert(1)> said it.\n"
    expect(answer.locator("pre")).to_have_text("print('<b>')")
    expect(answer.locator("img, b")).to_have_count(0)
    expect(page.get_by_role("article", name="user").locator(".said").last).to_have_text("Are you <b>safe</b>?")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_what_is_set_is_sent_with_the_conversation_so_far(page, say):
    page.get_by_text("System prompt and sampling").click()
    page.get_by_label("System prompt", exact=True).fill("Be brief.")
    for label, value in (("Temperature", "0.5"), ("Top p", "0.9"), ("Max tokens", "3"), ("Seed", "7")):
        page.get_by_label(label, exact=True).fill(value)
    answer = say("endless", "first")
    expect(answer.locator(".timings")).to_contain_text("cut off at the token limit")
    with page.expect_request("**/v1/chat/completions") as caught:
        say("endless", "second")
    body = caught.value.post_data_json
    said = body.pop("messages")
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user"]
    assert [said[0]["content"], said[1]["content"], said[3]["content"]] == ["Be brief.", "first", "second"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert body == {"model": "endless", "temperature": 0.5, "top_p": 0.9, "max_tokens": 3, "seed": 7, **options}
    assert re.fullmatch(r"page-[0-9a-f]{24}", caught.value.headers["x-request-id"])
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_label("Temperature").fill("3")
    page.get_by_role("textbox", name="Message").fill("third")
    press(page, "Send")
    expect(page.get_by_label("Temperature")).to_be_focused()
    press(page, "New chat")
    expect(page.get_by_role("article")).to_have_count(0)


def test_stop_keeps_what_was_generated(page, say):
    answer = say("endless", "go on")
    expect(answer.locator(".said").last).to_have_text(re.compile(r"\S"))
    expect(answer).to_have_attribute("aria-busy", "true")
    press(page, "Stop")
    expect(answer.locator(".timings")).to_contain_text("stopped")
    expect(answer.locator(".said").last).to_have_text(re.compile(r"\S"))
    expect(answer.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(answer).not_to_have_attribute("aria-busy", "true")


def test_what_the_daemon_does_not_know_yet_is_stopped_too(page, say):
    unknown = {"error": {"message": "there is none", "code": "request_not_found"}}
    page.route("**/v1/requests/*", lambda route: route.fulfill(status=404, json=unknown))
    held = []

    def hold(route):
        held.append(route)

    page.route("**/v1/chat/completions", hold)
    answer = say("endless", "go on")
    expect(answer.locator(".hint")).to_have_text("waiting")
    press(page, "Stop")
    expect(answer.locator(".hint")).to_have_text("stopped")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_who_has_scrolled_back_stays_there_while_the_answer_grows(page, say):
    say("endless", "go on")
    grown = "more => document.getElementById('chat-messages').scrollHeight > (window.height ?? 500) + more"
    page.wait_for_function(grown, arg=200)
    box = page.locator("#chat-messages")
    expect(page.locator("#chat-messages")).to_have_js_property("scrollLeft", 0)
    assert box.evaluate("box => box.scrollTop") > 0
    box.evaluate("box => { window.height = box.scrollHeight; box.scrollTop = 0; }")
    page.wait_for_function(grown, arg=200)
    assert box.evaluate("box => box.scrollTop") == 0
    press(page, "Stop")


def test_reasoning_is_folded(say):
    answer = say("thinker", "two and two?")
    expect(answer.locator(".timings")).to_be_visible()
    expect(answer.get_by_text("It is four.")).to_be_visible()
    expect(answer.get_by_text("Let me see.")).to_be_hidden()
    answer.get_by_text("Reasoning").click()
    expect(answer.get_by_text("Let me see.")).to_be_visible()


def test_the_load_of_the_model_is_followed_and_its_failure_told(page, say, models, url):
    held = hold_load(models / "held")
    answer = say("held", "hello")
    expect(answer.locator(".hint")).to_have_text(re.compile(r"^loading \d+%"))
    Calls(url).call("DELETE", "/admin/models/held/load")
    let_go(held)
    expect(answer.get_by_role("alert")).to_contain_text("cancel")
    expect(answer.locator(".hint")).to_be_hidden()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_an_error_is_told_in_the_daemons_words(page, say):
    page.get_by_text("System prompt and sampling").click()
    page.get_by_label("Max tokens").fill("1")
    page.evaluate("document.querySelector('#chat-model').options[0].value = '<b>gone'")
    answer = say("<b>gone", "hello")
    expect(answer.get_by_role("alert")).to_contain_text("<b>gone")
    expect(answer.locator("b")).to_have_count(0)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    with page.expect_request("**/v1/chat/completions") as caught:
        say("poet", "again")
    assert [message["content"] for message in caught.value.post_data_json["messages"]] == ["again"]


def test_a_model_that_sees_takes_images_and_others_are_not_sent_any(page, say):
    page.locator("#chat-model").select_option("seer")
    red = {"name": "red.png", "mimeType": "image/png", "buffer": png("red", (56, 56))}
    page.locator("#chat-files").set_input_files([red, {**red, "name": "other.png"}])
    pictures = page.get_by_role("list", name="Images to send").get_by_role("img")
    expect(pictures).to_have_count(2)
    press(page, "Remove other.png")
    expect(pictures).to_have_count(1)
    page.get_by_text("System prompt and sampling").click()
    page.get_by_label("Max tokens").fill("2")
    with page.expect_request("**/v1/chat/completions") as caught:
        answer = say("seer", "what is this?")
    text, image = caught.value.post_data_json["messages"][0]["content"]
    assert text == {"type": "text", "text": "what is this?"}
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    expect(answer.locator(".timings")).to_be_visible()
    expect(page.get_by_role("article", name="user").get_by_role("img", name="red.png")).to_be_visible()
    expect(pictures).to_have_count(0)
    page.locator("#chat-files").set_input_files([{**red, "name": "a.txt", "mimeType": "text/plain"}])
    expect(page.locator("#toasts")).to_contain_text("a.txt is no PNG")
    page.locator("#chat-model").select_option("poet")
    expect(page.locator("#chat-attach")).to_be_hidden()
