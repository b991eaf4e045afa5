"""The documents name only what there is: links, files, classes, commands, log events, exit codes and limits."""

import ast
import re
from dataclasses import fields
from functools import cache
from itertools import chain

import pytest
from doc_pages import PAGES, ROOT, SOURCES, page, rows, words

from mlxd.daemon.api.errors import TABLE
from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.cli.root import COMMANDS
from mlxd.daemon.config_schema import SECTIONS, dotted_keys
from mlxd.memory import limits
from mlxd.memory.parts import Parts

OPERATIONS = page("operations")
LEVELS = {"exception": "error", "note": "debug or info"}
ALL_CODE = "\n".join(SOURCES.values())
every_page = pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)


def anchors(text):
    """What a heading is called in a link."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def in_code(text):
    """Fenced blocks and words in backticks."""
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [*fenced, *words(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))]


@every_page
def test_a_link_leads_somewhere(file):
    targets = re.findall(r"\]\(([^)]+)\)", file.read_text(encoding="utf-8"))
    for target in targets:
        path, _, anchor = target.partition("#")
        linked = (file.parent / path) if path else file
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text(encoding="utf-8")), target


@every_page
def test_a_file_that_is_named_exists(file):
    folders = ("daemon", "engines", "registry", "memory", "tests", "etc", "docs")
    named = re.findall(rf"(?<![\w/.~])(?:{'|'.join(folders)})/[\w/]+\.\w+(?:\.\w+)*", file.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


@every_page
def test_a_command_that_is_named_exists(file):
    code = "\n".join(in_code(file.read_text(encoding="utf-8")))
    named = set(re.findall(r"(?<![\w./-])mlxd ([a-z]+)", code)) - {"ready"}  # as in the ready line
    assert named <= COMMANDS.keys()


@every_page
def test_a_key_that_is_named_exists(file):
    named = re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z_]+)`", file.read_text(encoding="utf-8"))
    assert set(named) - events().keys() <= dotted_keys().keys()


def test_a_class_that_the_design_names_exists():
    headers = {"Host", "Origin"}
    named = {word for word in words(page("design")) if re.fullmatch(r"(?:[A-Z][a-z]+)+", word)} - headers
    assert len(named) > 20
    assert {name for name in named if not re.search(rf"^class {name}\b", ALL_CODE, re.MULTILINE)} == set()


def test_a_function_that_the_design_names_exists():
    calls = re.findall(r"`(?:(\w+)\.)?(\w+)\(.*?\)`", page("design"))
    methods = re.findall(r"`([A-Z]\w+)\.(\w+)`", page("design"))
    assert calls
    assert methods
    for _, name in [*calls, *methods]:
        assert re.search(rf"def {name}\(", ALL_CODE), name


def test_the_rooms_of_the_design_are_those_of_the_import_test():
    rules = ast.parse((ROOT / "tests" / "test_import_rules.py").read_text(encoding="utf-8"))
    [graph] = [
        node.value for node in rules.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS"
    ]
    allowed = {room: others - {room} for room, others in ast.literal_eval(graph).items()}
    documented = {words(room)[0]: set(words(imports)) for room, imports, _ in rows(page("design"), "Rooms")}
    assert documented == allowed


@cache
def events():
    """Every event that the code logs, with the name of its level."""
    found = {}
    for node in chain.from_iterable(ast.walk(ast.parse(text)) for text in SOURCES.values()):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        called = ast.unparse(node.func)
        methods = re.findall(r"\blog\.(\w+)|^(note)$", called)
        if methods:
            levels = {LEVELS.get(first or second, first or second) for first, second in methods}
            found[node.args[0].value] = " or ".join(sorted(levels))
    return found | dict.fromkeys(re.findall(r'"event": "([a-z.]+)"', ALL_CODE), "error")


def test_every_log_event_is_in_the_document_with_its_level():
    documented = {words(event)[0]: level for event, level, _ in rows(OPERATIONS, "The log")}
    assert documented == events()


def test_the_exit_codes_are_those_of_the_commands():
    assert [int(code) for code, _ in rows(OPERATIONS, "Exit codes")] == [int(code) for code in Exit]


def test_the_codes_with_advice_are_those_of_the_api():
    advised = [words(code)[0] for code, _ in rows(OPERATIONS, "When a request fails")]
    assert set(advised) <= {row.code for row in TABLE.values()}


def test_every_limit_and_every_part_of_memory_is_explained():
    named = {words(name)[0] for name, _ in rows(OPERATIONS, "Memory")}
    assert named == {limits.CONFIGURED, limits.MACHINE, limits.CGROUP, limits.METAL, limits.WIRED}
    parts = [words(name)[0] for name, _ in rows(OPERATIONS, "Memory", table=1)]
    assert parts == [part.name for part in fields(Parts)]
