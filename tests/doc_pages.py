"""Reads the documents: tables, examples, and the types that their tables speak of."""

import json
import re
from pathlib import Path

from mlxd.daemon.api.refusals import ApiError
from mlxd.daemon.config_rules import Unexpected

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("daemon", "engines", "registry", "memory")
SOURCES = {path: path.read_text(encoding="utf-8") for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_ELEMENTS = {"paths": "~/x", "hosts": "box.local", "origins": "https://a.example", "names": "qwen", "strings": "x"}
_SIMPLE = {
    "boolean": ([True, False], [1, "yes"]),
    "integer": ([3], [0.5, "x", True]),
    "number": ([1, 0.5], ["x", True]),
    "string": (["x"], [1]),
    "object": ([{}], ["x", 1]),
    "host": (["127.0.0.1", "::1", "box.local"], ["a b", ""]),
    "name": (["qwen", "org/qwen"], ["a b", 1]),
    "command": (["ssh", "ssh -o A=b"], [1, "", "ssh 'a"]),
    "path": (["~/x", "/x"], [1]),
    "size": (["512MB", 1], [0, "big"]),
    "duration": (["30s", 2.5], ["soon", -1]),
}


def page(name):
    """The text of docs/`name`.md."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks(text, language):
    """The fenced blocks in a language, as pairs of heading and text."""
    heading = ""
    for match in re.finditer(r"^#+ ([^\n]+)$|^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        heading = match[1] or heading
        if match[1] is None and match[2] == language:
            yield heading, match[3]


def rows(text, heading, table=0):
    """The cells of a table under a heading, row by row."""
    section = re.split(r"^#+ ", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)[table]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()[2:]]


def words(cell):
    """What a cell has in backticks."""
    return re.findall(r"`([^`]*)`", cell)


def claims(kind):
    """Values that a type, as documented, takes, and values that it does not."""
    quoted = [json.loads(word) for word in words(kind) if word[0] in '"tf']
    good, bad = _SIMPLE.get(re.match(r"\w*", kind)[0], ([], ["none of them"]))
    good, bad = [*good, *quoted], list(bad)
    if match := re.match(r"(?:integer|number) (above )?(-?\d+)(?: to|, up to) (\d+)", kind):
        low, high = int(match[2]), int(match[3])
        good, bad = [high], [*bad, low - 1, high + 1]
        (bad if match[1] else good).append(low)
    if match := re.match(r"integer, (\d) or more", kind):
        good, bad = [int(match[1]), 1000], [*bad, int(match[1]) - 1]
    if match := re.match(r"duration of (\d+)ms or more", kind):
        good, bad = [*good, f"{match[1]}ms"], [*bad, f"{int(match[1]) - 1}ms"]
    elif kind.startswith("duration"):
        good.append(0)
    if match := re.search(r"array of (paths|hosts|origins|names|strings)", kind):
        good, bad = [*good, [_ELEMENTS[match[1]]]], [*bad, 1, [1]]
    if kind.startswith(("size", "duration")):
        share = "percentage" in kind
        good += ["80%"] * share
        bad += [word for word in ("auto", "off", "never", "") if word not in quoted] + ["80%"] * (not share)
    return good, bad


def takes(read, value):
    """Whether `read` has no complaint about a value."""
    try:
        read(value)
    except (Unexpected, ApiError):
        return False
    return True
