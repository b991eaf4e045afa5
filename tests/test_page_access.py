"""The page for everybody: keyboard alone, a phone's width, both colour schemes, names that attack it."""

from __future__ import annotations

import re

import pytest
from axe_core import axe_source, grave_findings
from daemon_faults import IN_THREADS
from daemon_process import daemon
from page_browser import PHONE, live, row, watched
from page_calls import Calls
from playwright.sync_api import expect
from tiny_models import place_models

HOSTILE = "<img src=x onerror=alert(1)>"
LONG = "a-very-long-name-of-a-model-" * 4
SECTIONS = ("overview", "activity", "playground", "downloads", "settings")
# What Tab should reach: everything that can be used and is seen.
USABLE = "a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, summary, [tabindex='0']"
# Remembers what gets the focus, and whether that is seen.
WATCH = f"""
const isShown = each => each.checkVisibility() && !each.matches(".skip");
window.usable = [...document.querySelectorAll("{USABLE}")].filter(isShown);
window.reached = [];
document.addEventListener("focusin", ({{ target }}) => {{
  const shown = target.type === "file" ? target.closest("label") : target;
  window.reached.push([usable.indexOf(target), getComputedStyle(shown).outlineStyle !== "none"]);
}});
usable.length"""


@pytest.fixture(scope="module")
def url(tmp_path_factory, browser, micro_model):
    folder = tmp_path_factory.mktemp("daemon")
    models = place_models(folder / "models", dict.fromkeys(("alpha", "beta", HOSTILE, LONG), micro_model))
    with daemon(folder / "d", models, "[residency]\nmax_loaded = 2\n", environ=IN_THREADS) as running:
        calls = Calls(running.url)
        for name in ("alpha", HOSTILE, "beta", LONG):
            calls.chat(name)
        yield running.url


@pytest.fixture
def busy(url):
    """The daemon with a request that runs and one that waits."""
    calls = Calls(url)
    calls.chat(LONG)
    calls.chat(HOSTILE)
    with (
        calls.streaming(LONG, "first", max_tokens=30000),
        calls.streaming(HOSTILE, "second", max_tokens=30000),
        calls.asking("beta", "third"),
    ):
        yield url


def opened(page, url, section):
    page.goto(f"{url}/#{section}")
    expect(page.locator(f"#{section}-view")).to_be_visible()
    live(page)
    if section == "activity":
        expect(page.locator("#log .line").first).to_be_visible()
    if section == "settings":
        expect(page.locator("#config tbody tr").first).to_be_visible()
    if section == "playground":
        expect(page.get_by_role("option", name="alpha")).to_be_attached()


def test_hostile_names_and_log_lines_are_text(browser, url):
    with watched(browser, url) as page:
        live(page)
        expect(row(page, "alpha").locator("strong")).to_have_text("alpha")
        expect(page.locator("#models strong", has_text=HOSTILE)).to_have_count(1)
        expect(page.locator("#evictions")).to_contain_text(HOSTILE)
        page.goto(f"{url}/#activity")
        expect(page.locator("#decisions")).to_contain_text(HOSTILE)
        expect(page.locator("#log")).to_contain_text(HOSTILE)
        page.goto(f"{url}/#playground")
        expect(page.locator("#chat-model option", has_text=HOSTILE)).to_have_count(1)
        assert page.locator("img").count() == 0


def test_the_end_of_the_log_can_be_filtered_and_paused(browser, url):
    with watched(browser, f"{url}/#activity") as page:
        lines = page.locator("#log .line")
        expect(lines.filter(has_text="model.loaded").first).to_be_visible()
        page.locator("#log-level").select_option("error")
        expect(lines.filter(has_text="model.loaded").first).to_be_hidden()
        page.locator("#log-level").select_option("info")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#log-state")).to_have_text("paused")
        Calls(url).call("POST", "/admin/unload")
        page.get_by_role("button", name="Pause").click()
        expect(lines.filter(has_text="path=/admin/unload")).to_have_count(1)
        Calls(url).call("PATCH", "/admin/models/alpha", {"pinned": False})
        expect(lines.filter(has_text="path=/admin/models/alpha")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_grave(browser, busy, scheme):
    source = axe_source()
    with watched(browser, busy, color_scheme=scheme, reduced_motion="reduce") as page:
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")
        for section in SECTIONS:
            opened(page, busy, section)
            assert grave_findings(page, source) == []
        opened(page, busy, "overview")
        page.get_by_role("button", name="Why alpha").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert grave_findings(page, source) == []


def test_nothing_is_wider_than_a_phone(browser, busy):
    with watched(browser, busy, viewport=PHONE) as page:
        for section in SECTIONS:
            opened(page, busy, section)
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], section
            assert page.evaluate("(nav => nav.scrollWidth <= nav.clientWidth)(document.querySelector('nav'))"), section
        opened(page, busy, "overview")
        page.locator("#models button", has_text="Why").last.click()
        dialog = page.get_by_role("dialog").bounding_box()
        assert 0 <= dialog["x"] <= dialog["x"] + dialog["width"] <= PHONE["width"]


def test_tab_reaches_everything_in_order_with_a_visible_focus(browser, busy):
    with watched(browser, busy) as page:
        for section in SECTIONS:
            opened(page, busy, section)
            page.get_by_role("link", name="Skip to content").focus()
            usable = page.evaluate(WATCH)
            for _ in range(usable):
                page.keyboard.press("Tab")
            assert page.evaluate("reached") == [[place, True] for place in range(usable)], section
            page.reload()


def test_a_model_is_loaded_and_a_dialog_left_with_the_keyboard_alone(browser, url):
    with watched(browser, url) as page:
        live(page)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        Calls(url).call("POST", "/admin/models/alpha/unload", {"mode": "force"})
        expect(row(page, "alpha").locator(".state")).to_have_text("unloaded")
        page.get_by_role("button", name="Why alpha").focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="Close")).to_be_focused()
        page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)
        expect(page.get_by_role("button", name="Why alpha")).to_be_focused()
        page.get_by_role("button", name="Load alpha").focus()
        page.keyboard.press("Space")
        expect(row(page, "alpha").locator(".state")).to_have_text("ready")
        expect(row(page, "alpha").get_by_role("button").locator("visible=true").first).to_be_focused()


def test_skipping_to_the_content_stays_in_the_section(browser, url):
    with watched(browser, url) as page:
        opened(page, url, "settings")
        page.get_by_role("link", name="Skip to content").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        expect(page.locator("#settings-view")).to_be_visible()
        assert page.evaluate("location.hash") == "#settings"
