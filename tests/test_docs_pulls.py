"""docs/api.md says what a download is and how it fails: compared with the code."""

from __future__ import annotations

import re
from typing import get_args

from doc_pages import page, rows, words
from test_docs_api import examples

from mlxd.daemon.api.pulls import PullBody
from mlxd.daemon.downloads import places, pulls
from mlxd.daemon.downloads.messages import Reason
from mlxd.daemon.downloads.pull import PullStatus, State
from mlxd.daemon.downloads.room import MARGIN

TEXT = page("api")
OPERATIONS = page("operations")


def test_the_reasons_and_states_are_those_of_the_code():
    assert [words(reason)[0] for reason, _ in rows(TEXT, "Downloads", table=1)] == list(get_args(Reason))
    shown = TEXT.partition("- `state`: `queued` (two run")[2].partition("- `commit`")[0]
    assert ["queued", *words(shown)] == list(get_args(State))


def test_the_fields_and_the_example_are_those_of_the_code():
    assert [words(field)[0] for field, *_ in rows(TEXT, "Downloads")] == list(PullBody.__struct_fields__)
    assert list(examples("Downloads")[0]) == list(PullStatus.__struct_fields__)


def test_the_limits_are_those_of_the_document():
    assert (pulls.AT_A_TIME, pulls.REMEMBERED, pulls.MOST_WAITING, pulls.STALL) == (2, 50, 100, 60.0)
    assert (MARGIN, places.KEPT) == (256_000_000, 7 * 86_400)
    assert re.search(rf"`{re.escape(places.HIDDEN)}/pulls`", OPERATIONS)
