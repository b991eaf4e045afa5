"""The page with API keys of every scope, a changed configuration, and a download."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from daemon_faults import IN_THREADS
from daemon_process import daemon
from page_browser import live, press, row, watched
from playwright.sync_api import expect
from tiny_models import place_models

from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.daemon.keys_file import add_key

CONFIG = '[models]\nttl = "1h"\n'
# What Chromium writes to the console for answers that are meant to be refused.
REFUSED = ("status of 401", "status of 403")


@pytest.fixture(scope="module")
def models(tmp_path_factory, micro_model):
    return place_models(tmp_path_factory.mktemp("models"), dict.fromkeys(("alpha", "beta"), micro_model))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, browser, models):
    """The URL of a daemon that asks for keys."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "keys.toml"
    for name, scope, *only in (
        ("boss", Scope.ADMIN),
        ("watch", Scope.READ),
        ("user", Scope.INFER),
        ("half", Scope.ADMIN, "al*"),
    ):
        add_key(file, ApiKey(name, (scope,), hash_of(f"mlxd-{name}"), datetime.now(UTC), tuple(only)))
    with daemon(folder / "d", models, f'[auth]\nkeys_file = "{file}"\n', environ=IN_THREADS) as running:
        yield running.url


@pytest.fixture(scope="module")
def open_daemon(tmp_path_factory, browser, models):
    with daemon(tmp_path_factory.mktemp("open"), models, CONFIG, environ=IN_THREADS) as running:
        yield running


def give(page, key):
    """Answer the dialog that asks for a key."""
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill(key)
    dialog.get_by_role("button", name="Use key").click()


def test_a_key_is_asked_for_and_kept_for_the_tab_alone(browser, guarded):
    with watched(browser, guarded, allowed=REFUSED) as page:
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("asks for an API key")
        give(page, "mlxd-nobody")
        expect(dialog).to_contain_text("not one of this daemon's")
        give(page, "mlxd-boss")
        live(page)
        expect(page.get_by_role("button", name="Pin alpha")).to_be_enabled()
        assert page.evaluate("[JSON.stringify(sessionStorage), localStorage.length, document.cookie]") == [
            '{"mlxd.key":"mlxd-boss"}',
            0,
            "",
        ]
        page.reload()
        live(page)
        expect(page.get_by_role("dialog")).to_have_count(0)
        press(page, "Forget key")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#notice")).to_contain_text("none was given")
        page.get_by_role("link", name="Activity").click()
        expect(page.locator("#log-state")).to_contain_text("none was given")
        expect(page.get_by_role("dialog")).to_have_count(0)
        press(page, "API key")
        give(page, "mlxd-boss")
        live(page)
        expect(page.locator("#notice")).to_be_hidden()
    with watched(browser, guarded, allowed=REFUSED) as page:
        expect(page.get_by_role("dialog", name="API key")).to_be_visible()


def test_keys_are_listed_without_what_they_are_found_by(browser, guarded):
    with watched(browser, f"{guarded}/#settings", allowed=REFUSED) as page:
        give(page, "mlxd-watch")
        expect(page.locator("#keys tbody tr")).to_have_count(4)
        expect(page.get_by_role("row", name="half")).to_contain_text("al*")
        assert hash_of("mlxd-boss").rpartition(":")[2] not in page.content()


def test_a_key_that_reads_can_press_nothing_that_changes(browser, guarded):
    with watched(browser, guarded, allowed=REFUSED) as page:
        give(page, "mlxd-watch")
        live(page)
        expect(page.get_by_role("button", name="Load alpha", exact=True)).to_be_disabled()
        expect(page.get_by_role("button", name="Load alpha", exact=True)).to_have_attribute(
            "title", re.compile("scope admin")
        )
        expect(page.get_by_role("button", name="Why alpha")).to_be_enabled()
        page.goto(f"{guarded}/#settings")
        expect(page.get_by_role("button", name="Reload…")).to_be_disabled()
        page.goto(f"{guarded}/#playground")
        expect(page.locator("#chat-model")).to_contain_text("needs a key with the scope infer")
        expect(page.get_by_role("button", name="Send")).to_be_disabled()


def test_a_key_that_infers_has_the_playground_and_is_told_of_the_rest(browser, guarded):
    with watched(browser, f"{guarded}/#playground", allowed=REFUSED) as page:
        give(page, "mlxd-user")
        expect(page.locator("#notice")).to_contain_text("needs a key with the scope read")
        page.get_by_text("System prompt and sampling").click()
        page.get_by_label("Max tokens").fill("2")
        page.get_by_role("textbox", name="Message").fill("hello")
        press(page, "Send")
        expect(page.locator("[data-role=assistant] .timings")).to_be_visible()


def test_a_key_for_some_models_has_those(browser, guarded):
    with watched(browser, guarded, allowed=REFUSED) as page:
        give(page, "mlxd-half")
        expect(page.locator("#notice")).to_contain_text("needs a key for all models")
        expect(page.locator("#models > li")).to_have_count(1)
        expect(page.get_by_role("button", name="Pin alpha")).to_be_enabled()


def test_peers_are_listed_as_they_are_now(browser, tmp_path, models):
    with daemon(tmp_path / "there", models, environ=IN_THREADS, exit_code=None) as there:
        entry = f'[[peer]]\nname = "studio"\nurl = "{there.url}"\n'
        with (
            daemon(tmp_path / "here", models, entry, environ=IN_THREADS) as here,
            watched(browser, f"{here.url}/#settings") as page,
        ):
            peer = page.locator("#peers").get_by_role("row", name="studio")
            expect(peer.get_by_role("cell").nth(0)).to_have_text("up", timeout=15_000)
            expect(peer.get_by_role("cell").nth(1)).to_have_text("2")
            expect(page.locator("#config").get_by_role("row", name="peer.studio.url")).to_contain_text("file")
            there.process.kill()
            expect(peer.get_by_role("cell").nth(0)).to_contain_text("down: it cannot be reached", timeout=20_000)


def test_a_reload_shows_what_it_changes_before_it_does(browser, open_daemon):
    file = open_daemon.folder / "mlxd.toml"
    with watched(browser, f"{open_daemon.url}/#settings", allowed=("status of 400",)) as page:
        expect(page.locator("#keys-note")).to_contain_text("There are none")
        ttl = page.locator("#config").get_by_role("row", name=re.compile(r"^models\.ttl"))
        expect(ttl.get_by_role("cell")).to_have_text(["1h", "file"])
        expect(page.locator("#config").get_by_role("row", name="server.port")).to_contain_text("--port")
        expect(page.locator("#config").get_by_role("row", name="residency.max_wait")).to_contain_text("default")
        press(page, "Reload…")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Nothing differs")
        dialog.get_by_role("button", name="Close").click()
        file.write_text('[models]\nttl = "2h"\nresidency = 1\n')
        press(page, "Reload…")
        expect(dialog).to_contain_text(re.compile("line 3.*residency"))
        dialog.get_by_role("button", name="Close").click()
        file.write_text('[models]\nttl = "2h"\n[[model]]\nname = "alpha"\naliases = ["<b>chat</b>"]\n')
        press(page, "Reload…")
        change = dialog.get_by_role("row", name="models.ttl")
        expect(change.locator("del")).to_have_text("1h")
        expect(change.locator("ins")).to_have_text("2h")
        expect(dialog).to_contain_text("alpha")
        expect(ttl).to_contain_text("1h")
        dialog.get_by_role("button", name="Apply").click()
        expect(page.locator("#toasts")).to_contain_text("is applied")
        expect(ttl).to_contain_text("2h")
        page.get_by_label("Filter configuration keys").fill("aliases")
        expect(page.locator("#config tbody tr")).to_have_count(1)
        expect(page.locator("#config tbody tr")).to_have_text('model.alpha.aliases["<b>chat</b>"]file')
        page.goto(f"{open_daemon.url}/#overview")
        expect(row(page, "alpha")).to_contain_text("also <b>chat</b>")


def test_a_download_is_begun_and_its_failure_told(browser, open_daemon):
    with watched(browser, open_daemon.url) as page:
        page.get_by_role("link", name="Downloads").click()
        page.get_by_label("Repository").fill("org/nothing")
        press(page, "Download")
        pull = page.locator("#pulls > li")
        expect(pull).to_have_count(1)
        expect(pull).to_contain_text("org/nothing @ main")
        expect(pull.locator(".state")).to_have_text("failed")
        expect(pull.locator(".error")).not_to_be_empty()
        expect(page.get_by_label("Repository")).to_have_value("")
