"""axe-core, which finds what keeps people from using a page; installed with npm into the ignored cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

PACKAGE = "axe-core@4.14.1"
GRAVE = ("serious", "critical")

_CACHE = Path(__file__).resolve().parent.parent / ".cache" / "js"
_RUN = "axe.run(document, { preload: false, resultTypes: ['violations'] }).then(({ violations }) => violations)"


def axe_source() -> str:
    """Its script; the test is skipped where it cannot be installed."""
    folder = _CACHE / PACKAGE
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        _install(folder)
    return script.read_text(encoding="utf-8")


def grave_findings(page: Page, source: str) -> list[tuple[str, list[Any]]]:
    """The rules that the page breaks gravely now, each with the elements that do."""
    page.evaluate(f"if (!window.axe) {{ {source} }}")
    found = [each for each in page.evaluate(_RUN) if each["impact"] in GRAVE]
    return [(each["id"], [(node["target"], node["failureSummary"]) for node in each["nodes"]]) for each in found]


def _install(folder: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if result.returncode != 0:
        pytest.skip(f"npm cannot install {PACKAGE}: {result.stderr[-500:]}")
