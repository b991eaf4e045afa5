"""No test of the registry sleeps: what it waits for happens on a virtual clock, or is told by an event."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def imported_rooms(tree: ast.AST) -> set[str]:
    """The rooms of mlxd that a file imports."""
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    return {module.split(".")[1] for module in modules if module.startswith("mlxd.")}


def sleeps(tree: ast.AST) -> list[int]:
    """The lines that name a sleep, called or handed on, whatever module it is of."""
    return [node.lineno for node in ast.walk(tree) if _names_a_sleep(node)]


def _names_a_sleep(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="sleep") | ast.Name(id="sleep"):
            return True
        case ast.ImportFrom(names=names):
            return any(name.name == "sleep" for name in names)
    return False


def registry_tests() -> Iterator[Path]:
    """Files that drive the registry or help to, and not the daemon around it."""
    for path in sorted(TESTS.glob("*.py")):
        rooms = imported_rooms(ast.parse(path.read_text()))
        if "registry" in rooms and "daemon" not in rooms:
            yield path


@pytest.mark.parametrize("path", list(registry_tests()), ids=lambda path: path.stem)
def test_no_test_of_the_registry_sleeps(path):
    assert sleeps(ast.parse(path.read_text())) == []


def test_the_files_that_drive_the_registry_are_among_those_that_are_read():
    names = {path.name for path in registry_tests()}
    assert {"test_registry.py", "test_prefix_room.py", "test_planner.py", "planning.py", "fake_engine.py"} <= names


@pytest.mark.parametrize(
    "source",
    ["await asyncio.sleep(0)", "from time import sleep as nap", "time.sleep(1)", "sleep(2)", "retry(wait=anyio.sleep)"],
)
def test_a_sleep_is_found_however_it_is_named(source):
    assert sleeps(ast.parse(source)) == [1]
