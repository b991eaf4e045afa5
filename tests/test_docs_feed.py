"""docs/api.md says what the feed and a plan hold: compared with the code."""

import re

from doc_pages import ROOT, SOURCES, page, rows, words
from test_docs_api import examples

from mlxd.daemon.api import feed_source
from mlxd.daemon.api.explain import plan_object
from mlxd.daemon.feed import LINGER, RING_BYTES
from mlxd.registry.explain import Plan, Verdict

TEXT = page("api")


def test_the_verdicts_are_those_of_the_code():
    assert [words(verdict)[0] for verdict, _ in rows(TEXT, "Plans")] == [str(verdict) for verdict in Verdict]


def test_the_example_of_a_plan_looks_like_one():
    assert list(examples("Plans")[0]) == list(plan_object(Plan("m", Verdict.LOADS, 1, 2)))


def test_the_events_are_those_that_are_published():
    documented = {words(event)[0] for event, _ in rows(TEXT, "Events")}
    code = SOURCES[ROOT / "daemon" / "api" / "feed_source.py"]
    assert documented == {"snapshot", *re.findall(r'publish\("(\w+)"', code)}
    assert f"the last {feed_source.SHOWN_DECISIONS} `decisions`" in TEXT


def test_what_is_kept_is_what_the_document_says():
    assert (RING_BYTES, LINGER) == (4 * 2**20, 120)
    assert "4 MiB of events, until two minutes after" in TEXT
