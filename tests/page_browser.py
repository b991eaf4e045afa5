"""Debian's Chromium on the daemon's page, and everything that a page must not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Response, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 360, "height": 740}
# Milliseconds; the machine may be busy with other tests.
PATIENCE = 20_000

expect.set_options(timeout=PATIENCE)

_LISTEN = "document.addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the test is skipped where none is installed."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with ExitStack() as stack:
        with _without_preload():
            playwright = stack.enter_context(sync_playwright())
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*flags, "--disable-dev-shm-usage"])
        stack.callback(browser.close)
        yield browser


@contextmanager
def _without_preload() -> Iterator[None]:
    """The BLAS that tests are run with is nothing for Playwright's driver and the browser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LD_PRELOAD", raising=False)
        yield


@contextmanager
def watched(browser: Browser, url: str, *, allowed: tuple[str, ...] = (), **options: Any) -> Iterator[Page]:
    """The page of a daemon, in a window of its own. At the end it must have told of no error.

    Chromium writes a line to the console for each answer with an error status; those with one of the statuses or
    texts in `allowed` are meant. `options` are those of a browser context.
    """
    wrong: list[str] = []
    origin = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(PATIENCE)
    context.add_init_script(_LISTEN)
    page = context.new_page()

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(each in message.text for each in allowed):
            wrong.append(message.text)

    def check(response: Response) -> None:
        if not response.url.startswith((origin, "data:", "blob:")):
            wrong.append(f"asked {response.url}")

    page.on("console", note)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("response", check)
    try:
        page.goto(url)
        yield page
    finally:
        context.close()
    assert not wrong, wrong


def live(page: Page) -> None:
    """Wait until the page follows the daemon."""
    expect(page.locator("#connection")).to_have_text("live")


def row(page: Page, model: str) -> Any:
    """The row of a model."""
    return page.locator(f'#models > li[data-model="{model}"]')


def press(page: Page, name: str) -> None:
    """Press the button of this name."""
    page.get_by_role("button", name=name, exact=True).click()
