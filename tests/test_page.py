"""The page's files: what they are served with, and what may not be in them."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import tomllib

import aiohttp
import pytest
from api_fakes import serving
from doc_pages import ROOT, page

from mlxd.daemon.api.page import INDEX, POLICY, TYPES, read_page

FOLDER = ROOT / "daemon" / "page"
FILES = sorted(FOLDER.iterdir())
SCRIPTS = [file for file in FILES if file.suffix == ".js"]
LARGEST = 200_000
LONGEST_SCRIPT = 200
# What makes HTML or code of text, or keeps things for longer than a tab.
FORBIDDEN = (
    *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "srcdoc", "eval(", "new Function"),
    *("localStorage", "indexedDB", "cookie"),
)
# Compiles each file as a module, as `node --check` does, in one process.
COMPILE = """
for (const file of process.argv.slice(1)) {
  new (require("vm").SourceTextModule)(require("fs").readFileSync(file, "utf8"), { identifier: file });
  console.log(file);
}
"""
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.name)


async def ask(served, path, method="GET", **headers):
    """Status, headers and body of an answer."""
    async with (
        aiohttp.ClientSession(served.url) as http,
        http.request(method, path, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


async def test_the_page_and_each_of_its_files_is_served_as_it_is():
    async with serving() as served:
        for path, file in [("/", FOLDER / INDEX), *((f"/page/{file.name}", file) for file in FILES)]:
            status, headers, body = await ask(served, path)
            assert (status, body) == (200, file.read_bytes())
            assert headers["Content-Type"] == TYPES[file.suffix[1:]]
            assert headers["Content-Security-Policy"] == POLICY
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-cache"


async def test_a_file_that_a_browser_has_is_not_sent_again():
    async with serving() as served:
        for path in ("/", "/page/app.js"):
            _, headers, _ = await ask(served, path)
            status, again, body = await ask(served, path, **{"If-None-Match": headers["ETag"]})
            assert (status, body, again["ETag"]) == (304, b"", headers["ETag"])
            assert again["Content-Security-Policy"] == POLICY
            assert (await ask(served, path, **{"If-None-Match": '"another"'}))[0] == 200
            status, head, body = await ask(served, path, "HEAD")
            assert (status, body, head["ETag"]) == (200, b"", headers["ETag"])


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2Fkeys.py", "%2e%2e%2fpage%2fapp.js", "app.js%00", "APP.js", ".", "%2Fetc%2Fpasswd"]
)
async def test_only_names_of_the_table_are_files(name):
    async with serving() as served:
        assert (await ask(served, f"/page/{name}"))[0] == 404


def test_the_page_is_small():
    assert sum(file.stat().st_size for file in FILES) < LARGEST


def test_every_file_is_of_a_known_kind_and_goes_into_the_package():
    assert read_page().keys() == {file.name for file in FILES}
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["mlxd.daemon"]
    for file in FILES:
        assert any(fnmatch.fnmatch(f"page/{file.name}", pattern) for pattern in packaged)


def test_what_files_name_is_there_and_nothing_is_from_elsewhere():
    names = {file.name for file in FILES}
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        named = {*re.findall(r'"/page/([^"]+)"', text), *re.findall(r'(?:from|import|import\()\s*"\./([^"]+)"', text)}
        assert named <= names, file.name
        assert set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", text)) <= {"http://www.w3.org/2000/svg"}, (
            file.name
        )
        assert "@import" not in text
        assert "url(" not in text


def test_the_html_has_no_script_and_no_style_of_its_own():
    html = (FOLDER / INDEX).read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>(?!</script>)", html) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", html) == []


@every_script
def test_no_script_makes_html_or_code_of_text_or_keeps_anything(script):
    text = script.read_text(encoding="utf-8")
    assert [word for word in FORBIDDEN if word in text] == []


@every_script
def test_a_script_is_short(script):
    assert len(script.read_text(encoding="utf-8").splitlines()) < LONGEST_SCRIPT


def test_every_script_is_well_formed():
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    command = ["node", "--experimental-vm-modules", "--no-warnings", "-e", COMPILE, *map(str, SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(script) for script in SCRIPTS]


def test_the_documents_tell_of_the_policy():
    assert "Content-Security-Policy" in page("security")
    assert "## The page" in page("operations")
