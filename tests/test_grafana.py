"""The dashboard for Grafana asks for series that there are, by labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from doc_pages import rows

ROOT = Path(__file__).parent.parent
DASHBOARD = json.loads((ROOT / "etc" / "grafana.json").read_text())
PANELS = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def documented() -> dict[str, set[str]]:
    """Labels by the names of metrics; each has its instance."""
    text = (ROOT / "docs" / "api.md").read_text()
    return {
        name.strip("`"): {"instance", "le", *re.findall(r"`(\w+)`", labels)}
        for name, _, labels, *_ in rows(text, "Metrics")
    }


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_panel_asks_for_what_there_is(expression):
    known = documented()
    for name, selector in re.findall(r"(mlxd_\w+)\{([^}]*)\}", expression):
        labels = known[SUFFIX.sub("", name) if SUFFIX.sub("", name) in known else name]
        assert set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", selector)) <= labels
        grouped = re.search(r"by \(([\w, ]+)\)", expression)
        assert set(re.split(r",\s*", grouped[1]) if grouped else []) <= labels


def test_every_metric_of_the_contract_has_a_panel_but_those_for_debugging():
    asked = {SUFFIX.sub("", name) for expression in EXPRESSIONS for name in re.findall(r"mlxd_\w+", expression)}
    assert set(documented()) - asked == {
        "mlxd_cancel_to_freed_seconds",
        "mlxd_memory_promised_bytes",
        "mlxd_tasks",
    }


def test_panels_do_not_overlap():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
