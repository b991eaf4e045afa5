"""What is kept of responses, for whom, and how much memory it takes at most."""

import gc
import tracemalloc

import msgspec
import pytest

from mlxd.daemon.api.refusals import ResponseNotFound
from mlxd.daemon.api.responses.store import TURN_COST, ResponseStore, Turn


def turn(name, *, key=None, size=100, parent=None, items=()):
    """A turn whose JSON has `size` bytes."""
    return Turn(name, key, False, b"i" * (size // 2), b"a" * (size - size // 2), tuple(items), parent)


def chain(store, length, *, size=100, prefix="r"):
    """So many turns that go on from one another, all kept."""
    last = None
    for number in range(length):
        last = turn(f"{prefix}{number}", size=size, parent=last)
        store.keep(last)
    return last


def kept(store, *names):
    return [name for name in names if store.find(name, None) is not None]


def missing(store, name, owner=None, param=None):
    with pytest.raises(ResponseNotFound) as refused:
        store.get(name, owner, param)
    return refused.value


def test_a_response_that_is_not_kept_is_named_with_the_reasons_it_can_have():
    refused = missing(ResponseStore(), "r", param="previous_response_id")
    assert refused.param == "previous_response_id"
    assert "dropped to make room" in str(refused)
    assert len(str(missing(ResponseStore(), "x" * 100_000))) < 400


def test_the_longest_unused_response_goes_first():
    store = ResponseStore(max_responses=2)
    for name in "ab":
        store.keep(turn(name))
    store.get("a", None)
    store.keep(turn("c"))
    assert kept(store, "a", "b", "c") == ["a", "c"]


def test_no_more_bytes_are_kept_than_the_bound():
    store = ResponseStore(max_bytes=10 * (TURN_COST + 1000))
    for number in range(50):
        store.keep(turn(f"r{number}", size=1000))
        assert store.bytes <= 10 * (TURN_COST + 1000)
    assert kept(store, *(f"r{number}" for number in range(50))) == [f"r{number}" for number in range(40, 50)]


def test_a_conversation_of_more_than_half_of_the_bytes_is_not_kept_and_drives_no_other_out():
    store = ResponseStore(max_bytes=20 * (TURN_COST + 1000))
    store.keep(turn("other", size=1000))
    chain(store, 15, size=1000)
    assert kept(store, "other", "r8", "r9", "r10", "r14") == ["other", "r8", "r9"]
    store.keep(turn("huge", size=11 * (TURN_COST + 1000)))
    assert kept(store, "other", "huge") == ["other"]


def test_turns_of_a_conversation_are_kept_once_however_long_it_is():
    store = ResponseStore()
    last = chain(store, 1000, size=1000)
    assert store.bytes == 1000 * (TURN_COST + 1000) == last.conversation_size
    assert [each.id for each in last.conversation()] == [f"r{number}" for number in range(1000)]
    for number in range(999):
        store.delete(f"r{number}", None)
    assert store.bytes == last.conversation_size
    store.delete("r999", None)
    assert store.bytes == 0


def test_a_turn_that_was_deleted_counts_until_nothing_goes_on_from_it():
    store = ResponseStore()
    last = chain(store, 3, size=1000)
    store.delete("r1", None)
    assert kept(store, "r0", "r1", "r2") == ["r0", "r2"]
    assert [each.id for each in last.conversation()] == ["r0", "r1", "r2"]
    assert store.bytes == 3 * (TURN_COST + 1000)
    store.delete("r0", None)
    assert store.bytes == 3 * (TURN_COST + 1000)
    store.delete("r2", None)
    assert store.bytes == 0


def test_a_turn_that_goes_on_from_a_deleted_one_counts_it_again():
    store = ResponseStore()
    first = chain(store, 1, size=1000)
    store.delete("r0", None)
    assert store.bytes == 0
    store.keep(turn("late", size=1000, parent=first))
    assert store.bytes == 2 * (TURN_COST + 1000)
    store.delete("late", None)
    assert store.bytes == 0


def test_branches_share_what_is_before_them():
    store = ResponseStore()
    first = chain(store, 1, size=1000)
    for name in ("left", "right"):
        store.keep(turn(name, size=1000, parent=first))
    assert store.bytes == 3 * (TURN_COST + 1000)
    store.delete("r0", None)
    store.delete("left", None)
    assert store.bytes == 2 * (TURN_COST + 1000)


def test_a_response_is_there_for_its_own_key_alone():
    store = ResponseStore()
    store.keep(turn("mine", key="me", items=("msg_1",)))
    assert store.get("mine", "me") is store.get("mine", None) is store.with_item("msg_1", "me", "input")
    missing(store, "mine", "you")
    with pytest.raises(ResponseNotFound):
        store.with_item("msg_1", "you", "input")
    with pytest.raises(ResponseNotFound):
        store.delete("mine", "you")
    with store.track("req", "me", is_wanted=True) as live:
        assert store.live(live.id, "me") is store.live(live.id, None) is live
        assert store.live(live.id, "you") is None


def test_items_are_found_for_as_long_as_their_response_is_kept():
    store = ResponseStore(max_responses=1)
    store.keep(turn("a", items=("msg_1", "fc_1")))
    assert store.with_item("fc_1", None, "input").id == "a"
    store.keep(turn("b"))
    with pytest.raises(ResponseNotFound) as refused:
        store.with_item("fc_1", None, "input[0].id")
    assert refused.value.param == "input[0].id"


def test_an_id_is_given_once():
    store = ResponseStore()
    store.keep(turn("resp_x"))
    with store.track("x", None, is_wanted=True) as second, store.track("x", None, is_wanted=True) as third:
        assert [second.id, third.id] == ["resp_x-2", "resp_x-3"]
        assert second.request_id == "x-2"
    assert store.live("resp_x-2", None) is None
    assert second.ended.is_set()


def test_what_is_counted_is_no_less_than_what_is_taken():
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        store = ResponseStore()
        for number in range(1100):
            text = msgspec.json.encode({"text": f"{number} " * 100})
            items = tuple(f"msg_{number:032}_{place}" for place in range(3))
            store.keep(Turn(f"resp_req-{number:024}", None, False, text, bytes(bytearray(text)), items))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(store) == 1000
    assert taken < store.bytes < 3 * taken
