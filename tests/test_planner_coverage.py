"""The coverage gate watches all of the planner, also the files that it is given later."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What the planner shares with its surroundings and decides nothing.
NOUNS = {"errors", "events", "model_kind", "snapshot", "spec"}


def imported_by(name: str) -> set[str]:
    """The files of the registry that one of them imports."""
    tree = ast.parse((ROOT / "registry" / f"{name}.py").read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    names = {module.split(".")[2] for module in modules if module.startswith("mlxd.registry.")}
    return {one for one in names if (ROOT / "registry" / f"{one}.py").exists()}


def reached_from(name: str) -> set[str]:
    """The file itself and all that it stands on."""
    reached, left = set(), {name}
    while left:
        reached.add(one := left.pop())
        left |= imported_by(one) - reached
    return reached


def test_every_file_that_the_planner_stands_on_is_measured():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["coverage"]
    measured = {Path(path).stem for path in settings["report"]["include"]}
    assert {"planner", "draft", "reactions"} <= reached_from("planner")
    assert reached_from("planner") - NOUNS <= measured
    assert settings["report"]["fail_under"] == 100
    assert settings["run"]["branch"] is True
