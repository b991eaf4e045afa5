"""Screenshots of the page at both widths and in both colour schemes: `make page-shots` keeps them in build/page/."""

from __future__ import annotations

import tempfile
from pathlib import Path

from daemon_faults import hold_load, let_go, room_for, scripted_probe
from daemon_process import daemon
from page_browser import DESKTOP, PHONE, chromium, live, press, row, watched
from page_calls import Calls
from playwright.sync_api import Browser, Page, expect
from tiny_models import build_reciting_model, build_tiny_model, cached, place_models

OUT = Path(__file__).resolve().parent.parent / "build" / "page"
SECTIONS = ("overview", "activity", "playground", "downloads", "settings")
PIECES = ("The capital", " of France", " is Paris.", "\n```python\n", "print('Paris')\n", "```\n", "Ask me more.")
CONFIG = room_for(3) + "[models]\nttl = '10m'\n"


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    tiny = cached("tiny", build_tiny_model)
    poet = cached("poet", lambda out: build_reciting_model(out, PIECES))
    named = ("mlx-community/Qwen3-8B-4bit", "mlx-community/Llama-3.2-3B", "gemma", "phi", "mistral-small")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        models = place_models(folder / "models", {**dict.fromkeys(named, tiny), "poet": poet})
        held = hold_load(models / "phi")
        with daemon(folder / "d", models, CONFIG, environ=scripted_probe(folder)) as running, chromium() as browser:
            _busy(running.url, browser)
            let_go(held)


def _busy(url: str, browser: Browser) -> None:
    """A daemon in the midst of its work: something ready, something evicted, a load, a stream and those that wait."""
    calls = Calls(url)
    calls.chat("gemma")
    calls.chat("mistral-small")
    calls.chat("mlx-community/Qwen3-8B-4bit")
    calls.chat("poet")
    calls.call("PATCH", "/admin/models/mistral-small", {"pinned": True})
    with calls.streaming("mlx-community/Qwen3-8B-4bit", max_tokens=20000), calls.asking("phi"):
        for width, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
            for scheme in ("light", "dark"):
                with watched(browser, url, viewport=viewport, color_scheme=scheme) as page:
                    _shoot(page, f"{width}-{scheme}")


def _shoot(page: Page, name: str) -> None:
    live(page)
    for section in SECTIONS:
        page.goto(f"{page.url.partition('#')[0]}#{section}")
        expect(page.locator(f"#{section}-view")).to_be_visible()
        if section == "playground":
            page.locator("#chat-model").select_option("poet")
            page.locator("#chat-input").fill("What is the capital of France?")
            page.locator("#chat-input").press("Enter")
            expect(page.locator("[data-role=assistant] .timings")).to_be_visible()
        if section == "settings":
            expect(page.locator("#config tbody tr").first).to_be_visible()
        page.screenshot(path=OUT / f"{section}-{name}.png", full_page=True)
    page.goto(f"{page.url.partition('#')[0]}#overview")
    row(page, "gemma").hover()
    expect(page.locator("#memory-plan")).to_contain_text("gemma")
    press(page, "Why gemma")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.screenshot(path=OUT / f"why-{name}.png")


if __name__ == "__main__":
    main()
