"""The page follows the feed: without drift over gaps, breaks and restarts, and however much there is of it."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from daemon_faults import IN_THREADS
from daemon_process import daemon
from page_browser import live, row, watched
from page_calls import Calls
from playwright.sync_api import expect
from tiny_models import place_models

# What Chromium writes to the console while nobody listens.
GONE = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE")
FIRST = 1000


@pytest.fixture(scope="module")
def models(tmp_path_factory, micro_model):
    return place_models(tmp_path_factory.mktemp("models"), dict.fromkeys(("alpha", "beta"), micro_model))


@pytest.fixture(scope="module")
def url(tmp_path_factory, browser, models):
    with daemon(tmp_path_factory.mktemp("daemon"), models, environ=IN_THREADS) as running:
        yield running.url


@pytest.fixture
def page(browser, url):
    """A window in which the page is not open yet."""
    with watched(browser, f"{url}/page/icon.svg", allowed=("status of 404",)) as opened:  # favicon.ico
        yield opened


@pytest.fixture
def shapes(url):
    """The model object and the memory object of a real daemon."""
    calls = Calls(url)
    return calls.call("GET", "/admin/models/alpha"), calls.call("GET", "/admin/memory")


def event(kind, seq, **data):
    return f"id: {seq}\nevent: {kind}\ndata: {json.dumps({'seq': seq, **data})}\n\n"


def snapshot(memory, models, requests=(), seq=FIRST):
    return event("snapshot", seq, models=models, requests=requests, memory=memory, decisions=[], pulls=[])


def answer(page, *streams):
    """Answer the page's calls of the feed with these streams, the one after them with nothing; gives the calls."""
    asked, waiting = [], list(streams)

    def serve(route):
        asked.append(urlsplit(route.request.url).query)
        if waiting:
            route.fulfill(content_type="text/event-stream", body=waiting.pop(0))

    page.route("**/admin/events*", serve)
    return asked


def request(number, **changes):
    plain = {"id": f"r{number}", "model": "m1", "api": "chat", "state": "decoding", "position": None, "age_s": 1.0}
    figures = {"prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": number, "decode_tps": 5.0}
    return {**plain, **figures, "waiting_for": None, "key": None, **changes}


def test_after_a_gap_the_page_goes_on_from_what_it_had(page, url, shapes):
    model, memory = shapes
    asked = answer(
        page,
        snapshot(memory, [model]) + event("model", FIRST + 2, model={**model, "id": "missed-one-before"}),
        event("model", FIRST + 1, model={**model, "pinned": True})
        + event("model", FIRST + 2, model={**model, "id": "b"}),
        snapshot(memory, [{**model, "id": "anew"}], seq=5) + event("model", 6, model={"id": "anew", "removed": True}),
    )
    with page.expect_request("**/admin/events?since=6"):
        page.goto(url)
    expect(page.locator("#models-empty")).to_be_visible()
    expect(page.locator("#connection")).to_have_text("reconnecting…")
    assert asked == ["", f"since={FIRST}", f"since={FIRST + 2}", "since=6"]


def test_a_hundred_models_and_two_hundred_requests_are_updated_in_place(page, url, shapes):
    model, memory = shapes
    models = [{**model, "id": f"m{number}", "state": "unloaded"} for number in range(100)]
    requests = [request(number) for number in range(200)]
    changes = [
        event("request", FIRST + 1 + number, request=request(number, state="decoding", completion_tokens=777))
        for number in range(200)
    ]
    ended = event("request", FIRST + 201, request={"id": "r7", "ended": True})
    first = page.locator('#requests > li[data-request="r0"]')
    streams = [snapshot(memory, models, requests), "".join(changes) + ended]
    later = []

    def hold(route):
        later.append(route)

    page.route("**/admin/requests", lambda route: route.fulfill(json={"data": []}))
    page.route("**/admin/events*", hold)
    with page.expect_request("**/admin/events"):
        page.goto(url)
    with page.expect_request(f"**/admin/events?since={FIRST}"):
        later.pop(0).fulfill(content_type="text/event-stream", body=streams[0])
    expect(page.locator("#requests > li")).to_have_count(200)
    expect(page.locator("#models > li")).to_have_count(8)
    page.get_by_role("button", name="Show 92 more").click()
    expect(page.locator("#models > li")).to_have_count(100)
    first.evaluate("node => { window.kept = node; }")
    cancel = first.get_by_role("button")
    cancel.focus()
    later.pop(0).fulfill(content_type="text/event-stream", body=streams[1])
    expect(page.locator("#requests > li")).to_have_count(199)
    expect(first.locator(".tokens")).to_contain_text("777 out")
    assert first.evaluate("node => node === window.kept")
    expect(cancel).to_be_focused()


def test_a_daemon_that_is_started_again_is_followed(browser, tmp_path, models):
    with ExitStack() as stack:
        with daemon(tmp_path / "first", models, environ=IN_THREADS) as first:
            Calls(first.url).chat("alpha")
            page = stack.enter_context(watched(browser, first.url, allowed=GONE))
            live(page)
            expect(row(page, "alpha").locator(".state")).to_have_text("ready")
        expect(page.locator("#connection")).to_have_text("reconnecting…")
        with daemon(tmp_path / "second", models, environ=IN_THREADS, port=urlsplit(first.url).port) as second:
            Calls(second.url).chat("beta")
            live(page)
            expect(row(page, "beta").locator(".state")).to_have_text("ready")
            expect(row(page, "alpha").locator(".state")).to_have_text("unloaded")
            expect(page.locator("#timeline .lanes")).to_contain_text("alpha")
            page.get_by_role("link", name="Activity").click()
            expect(page.locator("#decisions > li")).to_have_count(1)
            expect(page.locator("#decisions > li")).to_contain_text("beta")
            expect(page.locator("#log .line", has_text="request.ended").first).to_be_visible()
            stack.close()


WEEKS = """async () => {
  const { History } = await import("/page/history.js");
  const { Store } = await import("/page/store.js");
  let now = 1e12;
  const store = new Store(() => now);
  const history = new History(store);
  store.snapshot({ models: [], requests: [], memory: null, decisions: [], pulls: [] });
  for (let seq = 0; seq < 6000; seq += 1) {
    now += 60_000;
    const decision = { seq, at: now / 1000, model: `m${seq >> 1}`, kind: seq % 2 ? "evict" : "load", reason: "lru" };
    store.take("decision", { decision: { ...decision, for_model: null, for_request: null, inputs: {} } });
  }
  const first = history.leavings[0];
  store.addEarlier([]);
  const again = [...store.decisions];
  store.snapshot({ models: [], requests: [], memory: null, decisions: again.slice(-100), pulls: [] });
  store.addEarlier(again);
  return [history.seen.size, history.leavings.length, history.leavings[0] === first, history.spans.size];
}"""


def test_a_page_that_is_open_for_days_keeps_what_it_shows_and_no_more(page, url):
    page.goto(url)
    seen, leavings, is_same, spans = page.evaluate(WEEKS)
    assert seen <= 2000
    assert is_same
    assert leavings == 15
    assert spans <= 31


def test_a_page_that_nobody_sees_holds_no_connection(page, url):
    page.goto(f"{url}/#activity")
    live(page)
    expect(page.locator("#log .line").first).to_be_visible()
    see = "isSeen => { Object.defineProperty(document, 'hidden', { value: !isSeen, configurable: true }); "
    see += "document.dispatchEvent(new Event('visibilitychange')); }"
    with (
        page.expect_event("requestfailed", lambda failed: "/admin/events" in failed.url),
        page.expect_event("requestfailed", lambda failed: "/admin/logs?follow" in failed.url),
    ):
        page.evaluate(see, False)
    expect(page.locator("#connection")).to_have_text("connecting")
    Calls(url).call("PATCH", "/admin/models/beta", {"pinned": True})
    with page.expect_request("**/admin/events?since=*"), page.expect_request("**/admin/logs?follow=true*"):
        page.evaluate(see, True)
    live(page)
    expect(row(page, "beta").locator(".pin")).to_have_text("pinned")
    Calls(url).call("PATCH", "/admin/models/beta", {"pinned": False})


def test_connections_that_break_at_once_are_made_ever_less_often(page, url, shapes):
    model, memory = shapes
    asked = []

    def serve(route):
        asked.append(time.monotonic())
        if len(asked) < 6:
            route.fulfill(content_type="text/event-stream", body=snapshot(memory, [model]))

    page.route("**/admin/events*", serve)
    page.goto(url)
    while len(asked) < 5:
        page.wait_for_event("request", lambda request: "/admin/events" in request.url)
    assert asked[4] - asked[0] > 1.8


def test_a_time_of_another_day_has_its_date(page, url):
    page.goto(url)
    now, before = page.evaluate(
        "async () => { const { time } = await import('/page/format.js'); const now = Date.now() / 1000;"
        " return [time(now), time(now - 3 * 86400)]; }"
    )
    assert len(now) < len(before)
