"""What is news: of models, requests and memory, against what was told before."""

from __future__ import annotations

import copy

import pytest

from mlxd.daemon.api.feed_news import MEMORY_GRAIN, PROGRESS_INTERVAL, MemoryNews, ModelNews, RequestNews
from mlxd.daemon.api.running import RequestView

MODEL = {
    "id": "m", "state": "ready", "leases": 0, "load": None, "unload_at": 9.0, "loaded_at": 5.0, "last_used_at": 6.0,
    "engine": {"running": 0, "heartbeat_age_s": 0.0},
}  # fmt: skip
MEMORY = {
    "footprint_bytes": 10**9, "ceiling_bytes": 10**10, "soft_bytes": 9 * 10**9, "limit": "memory.ceiling",
    "pressure": "ok", "parts": {"weights": 5, "base": 7}, "models": [{"id": "m", "kv_bytes": 3}],
}  # fmt: skip


def view(name, state="queued", position=1, **changes):
    plain = RequestView(name, "m", "chat", state, position, 0.0, 0, 0, 0, None, "model", None)
    return RequestView(**{field: getattr(plain, field) for field in plain.__struct_fields__} | changes)


def test_a_model_is_news_until_it_is_told():
    news = ModelNews()
    assert news.differs(MODEL)
    assert news.tell(MODEL, 1.0) == MODEL
    assert not news.differs(MODEL)
    assert news.differs(MODEL | {"leases": 1})
    assert news.differs(MODEL | {"engine": None})
    assert news.differs(MODEL | {"engine": {"running": 1, "heartbeat_age_s": 0.0}})


def test_time_that_passes_is_no_news():
    news = ModelNews()
    news.tell(MODEL, 1.0)
    passed = {"unload_at": 9.001, "loaded_at": 5.001, "last_used_at": 6.001}
    assert not news.differs(MODEL | passed | {"engine": {"running": 0, "heartbeat_age_s": 3.0}})


def test_a_load_that_goes_on_may_wait_and_its_end_may_not():
    news = ModelNews()
    loading = MODEL | {"state": "loading", "load": {"bytes_done": 1}, "engine": None}
    assert not news.may_wait(loading, 1.0)
    news.tell(loading, 1.0)
    further = loading | {"load": {"bytes_done": 2}}
    assert news.may_wait(further, 1.0 + PROGRESS_INTERVAL / 2)
    assert not news.may_wait(further, 1.0 + PROGRESS_INTERVAL)
    assert not news.may_wait(MODEL, 1.0)


def test_a_model_that_was_removed_and_comes_back_is_news():
    news = ModelNews()
    news.tell(MODEL, 1.0)
    assert news.forget("m") == {"id": "m", "removed": True}
    assert news.differs(MODEL)
    assert news.forget("never told") == {"id": "never told", "removed": True}


def test_a_request_is_news_where_it_moves_and_when_it_ends():
    news = RequestNews()
    assert [each.id for each in news.moved([view("a"), view("b", position=2)])] == ["a", "b"]
    assert list(news.moved([view("a", age_s=5.0), view("b", position=2, completion_tokens=8)])) == []
    assert [each.id for each in news.moved([view("a", "decoding", None), view("b", position=1)])] == ["a", "b"]
    assert list(news.ended({"b"}, {"b"})) == []
    assert list(news.ended({"b"})) == [{"id": "a", "ended": True}]
    assert list(news.ended({"b"})) == []
    assert list(news.ended(set(), {"b", "never told"})) == [{"id": "b", "ended": True}]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pressure",), "soft"),
        (("limit",), "cgroup memory.max"),
        (("ceiling_bytes",), 10**10 + 1),
        (("soft_bytes",), 9 * 10**9 + 1),
        (("footprint_bytes",), 10**9 + 10**7),
        (("parts", "base"), 7 + 10**7),
        (("models",), []),
        (("models", 0, "kv_bytes"), 3 + 10**7),
    ],
)
def test_memory_is_news_when_people_would_see_it(path, value):
    news = MemoryNews()
    assert news.differs(MEMORY)
    news.tell(MEMORY)
    changed = copy.deepcopy(MEMORY)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert news.differs(changed)


def test_small_moves_of_memory_are_news_when_they_add_up():
    news = MemoryNews()
    news.tell(MEMORY)
    grain = MEMORY["ceiling_bytes"] // 1000
    assert not news.differs(MEMORY | {"footprint_bytes": 10**9 + grain - 1})
    assert news.differs(MEMORY | {"footprint_bytes": 10**9 + grain})
    small = MEMORY | {"ceiling_bytes": 1000}
    assert news.differs(small)
    news.tell(small)
    assert not news.differs(small | {"footprint_bytes": 10**9 + MEMORY_GRAIN - 1})
