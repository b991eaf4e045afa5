"""The page's overview in a browser: models, memory and what was in it, with a real daemon."""

from __future__ import annotations

import re

import pytest
from daemon_faults import IN_THREADS, WEIGHT_BYTES, hold_load, let_go, room_for, scripted_probe
from daemon_process import daemon
from page_browser import live, press, row, watched
from page_calls import Calls
from playwright.sync_api import expect
from tiny_models import place_models


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_model):
    return place_models(
        tmp_path_factory.mktemp("models"), dict.fromkeys(("alpha", "beta", "org/gamma", "slow"), tiny_model)
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory, browser, models):
    folder = tmp_path_factory.mktemp("daemon")
    with daemon(folder, models, room_for(2, WEIGHT_BYTES), environ={**scripted_probe(folder), **IN_THREADS}) as running:
        yield running.url


@pytest.fixture
def page(browser, url):
    with watched(browser, url, allowed=("status of 400",)) as opened:
        live(opened)
        yield opened
    calls = Calls(url)
    calls.call("POST", "/admin/unload")


@pytest.fixture
def calls(url):
    return Calls(url)


def test_a_load_shows_its_progress_and_can_be_cancelled(page, models):
    held = hold_load(models / "slow")
    press(page, "Load slow")
    slow = row(page, "slow")
    expect(slow.locator(".state")).to_have_text("loading")
    expect(slow.get_by_role("progressbar")).to_be_visible()
    expect(slow).to_contain_text(re.compile(r"of 11\.5 MB"))
    press(page, "Cancel load slow")
    let_go(held)
    expect(slow.locator(".state")).to_have_text(re.compile("unloaded|failed"))
    held = hold_load(models / "slow")
    press(page, "Load slow")
    expect(slow.locator(".state")).to_have_text("loading")
    let_go(held)
    expect(slow.locator(".state")).to_have_text("ready")
    expect(slow.get_by_role("progressbar")).to_be_hidden()
    expect(page.locator("#memory-legend")).to_contain_text("slow11.5 MB")
    expect(page.locator("#timeline .lanes")).to_contain_text("slow")
    press(page, "Unload slow")
    expect(slow.locator(".state")).to_have_text("unloaded")
    expect(page.locator("#toasts")).to_contain_text("came free")
    expect(page.locator("#evictions")).to_contain_text("an operator unloaded it (drained)")


def test_an_eviction_is_foretold_and_then_told_with_its_reason(page, calls):
    calls.chat("alpha")
    calls.chat("beta")
    calls.call("PATCH", "/admin/models/beta", {"pinned": True})
    expect(row(page, "beta").locator(".pin")).to_be_visible()
    page.get_by_role("button", name="Why org/gamma").focus()
    expect(page.locator("#memory-plan")).to_have_text("For org/gamma would leave: alpha.")
    expect(page.locator(".segment[data-leaves]")).to_have_attribute("title", re.compile("alpha"))
    press(page, "Why org/gamma")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("once other models have left")
    expect(dialog.locator("dd").nth(2)).to_have_text("alpha")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Why org/gamma")).to_be_focused()
    press(page, "Load org/gamma")
    expect(row(page, "org/gamma").locator(".state")).to_have_text("ready")
    expect(row(page, "alpha").locator(".state")).to_have_text("unloaded")
    expect(page.locator("#evictions li").first).to_contain_text(
        re.compile(r"alpha.*evict.*idle longest \(lru\), for org/gamma")
    )
    expect(page.locator('#timeline .left[data-kind="evict"]').first).to_have_attribute(
        "title", re.compile("alpha left")
    )
    page.get_by_role("link", name="Activity").click()
    page.get_by_label("Kind").select_option("evict")
    decision = page.locator("#decisions details").first
    expect(decision).to_contain_text("for org/gamma")
    decision.locator("summary").click()
    expect(decision.locator("pre")).to_contain_text('"needed_bytes"')
    assert set(page.locator("#decisions .tag").all_text_contents()) == {"evict"}
    page.get_by_label("Model", exact=True).and_(page.locator("#decisions-model")).fill("no such model")
    expect(page.locator("#decisions-empty")).to_have_text("No decision is like that.")
    calls.call("PATCH", "/admin/models/beta", {"pinned": False})


def test_a_pin_and_a_time_to_live_apply_at_once(page, calls):
    calls.chat("alpha")
    alpha = row(page, "alpha")
    expect(alpha.locator(".until")).to_have_text("until room is needed")
    press(page, "TTL alpha")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("soon")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog.get_by_role("alert")).to_contain_text("a duration such as")
    dialog.get_by_role("textbox").fill("1h")
    dialog.get_by_role("button", name="Change").click()
    expect(alpha.locator(".until")).to_have_text(re.compile(r"unloads in (59:|1:00:00)"))
    press(page, "Pin alpha")
    expect(alpha.locator(".pin")).to_be_visible()
    expect(page.get_by_role("button", name="Unpin alpha")).to_be_focused()
    expect(alpha.locator(".until")).to_have_text("stays")
    press(page, "Unpin alpha")
    expect(alpha.locator(".pin")).to_be_hidden()
    calls.call("PATCH", "/admin/models/alpha", {"ttl": None})
    expect(alpha.locator(".until")).to_have_text("until room is needed")


def test_force_asks_first_and_ends_what_runs(page, calls):
    with calls.streaming("beta", max_tokens=20000):
        expect(row(page, "beta").locator(".use")).to_contain_text("1 running")
        press(page, "Force unload beta")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("1 of its requests will be aborted")
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        expect(row(page, "beta").locator(".state")).to_have_text("ready")
        press(page, "Force unload beta")
        dialog.get_by_role("button", name="Force unload").click()
        expect(row(page, "beta").locator(".state")).to_have_text("unloaded")
        expect(page.locator("#evictions li").first).to_contain_text("forced it out")


def test_a_queue_is_shown_in_its_order_and_a_request_can_be_cancelled(page, calls):
    calls.chat("alpha")
    calls.call("PATCH", "/admin/models/alpha", {"pinned": True})
    with calls.streaming("beta", "busy", max_tokens=20000), calls.asking("slow", "one"), calls.asking("slow", "two"):
        requests = page.locator("#requests > li")
        expect(requests).to_have_count(3)
        busy, one, two = (page.locator(f'#requests > li[data-request="{name}"]') for name in ("busy", "one", "two"))
        expect(busy).to_contain_text("decoding")
        expect(one).to_contain_text("1st in line for its model")
        expect(two).to_contain_text("2nd in line for its model")
        expect(row(page, "slow").locator(".use")).to_have_text("2 queued")
        expect(busy.locator(".rate")).to_contain_text("tok/s")
        expect(busy.locator(".tokens")).to_contain_text("out")
        press(page, "Cancel one")
        expect(one).to_have_count(0)
        expect(two).to_contain_text("1st in line for its model")
        press(page, "Cancel busy")
        expect(busy).to_have_count(0)
        expect(two).to_have_count(0)
    expect(page.locator("#requests-empty")).to_be_visible()
    calls.call("PATCH", "/admin/models/alpha", {"pinned": False})


def test_the_filter_keeps_focus_and_text_while_rows_change(page, calls):
    search = page.get_by_label("Filter models")
    search.fill("ALPH")
    expect(page.locator("#models > li")).to_have_count(1)
    calls.chat("alpha")
    expect(row(page, "alpha").locator(".state")).to_have_text("ready")
    expect(search).to_be_focused()
    expect(search).to_have_value("ALPH")
    search.fill("nothing like that")
    expect(page.locator("#models-empty")).to_have_text("No model has this in its name.")


def test_memory_is_told_in_words_too(page):
    expect(
        page.get_by_role("img", name=re.compile(r"^Memory: .* of .*limit: memory\.ceiling.*Soft limit"))
    ).to_be_visible()
    expect(page.locator("#memory-figures")).to_contain_text("limit: memory.ceiling")
