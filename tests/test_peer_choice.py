"""Where requests go, and when a peer is left alone: pure rules."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from mlxd.registry.breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Breaker
from mlxd.registry.peer_choice import Option, Standing, preference, spread_of

READY, HERE, THERE = Standing

options = st.builds(
    Option,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([READY, THERE]),
    st.integers(-2, 2),
    st.integers(0, 3),
    st.none() | st.floats(0, 9),
)
own = st.builds(Option, st.none(), st.sampled_from([READY, HERE]), st.just(0), st.integers(0, 3))


def first(*options):
    return min(options, key=preference).peer


def test_what_is_ready_comes_before_a_load_here_and_that_before_one_elsewhere():
    assert first(Option(None, HERE), Option("a", READY, waiting=9)) == "a"
    assert first(Option("a", THERE, priority=9), Option(None, HERE, waiting=9)) is None


def test_among_equals_priority_counts_before_those_that_wait():
    assert first(Option(None, READY), Option("a", READY, priority=1, waiting=5)) == "a"
    assert first(Option(None, READY, waiting=5), Option("a", READY, priority=-1)) is None
    assert first(Option(None, READY, waiting=5), Option("a", READY, waiting=4)) == "a"


def test_this_daemon_is_tried_before_equal_peers_and_those_by_their_first_tokens():
    assert first(Option("a", READY), Option(None, READY)) is None
    assert first(Option("a", READY, first_token_s=0.5), Option("b", READY, first_token_s=0.2)) == "b"
    assert first(Option("a", READY, first_token_s=0.1), Option("b", READY)) == "b"


@given(st.lists(options, max_size=3), own)
def test_who_comes_first_does_not_depend_on_the_order_in_which_they_are_known(peers, own):
    known = [*peers, own]
    firsts = {preference(min(order, key=preference)) for order in itertools.permutations(known)}
    assert len(firsts) == 1
    assert min(known, key=preference).standing == min(option.standing for option in known)


def test_models_that_are_nowhere_are_spread_and_alike_for_every_daemon():
    peers = [f"peer-{number}" for number in range(8)]
    placed = [
        first(*(Option(peer, THERE, spread=spread_of(peer, f"model-{number}")) for peer in peers))
        for number in range(400)
    ]
    counts = [placed.count(peer) for peer in peers]
    assert 25 <= min(counts) <= max(counts) <= 80
    without = [
        first(*(Option(peer, THERE, spread=spread_of(peer, f"model-{number}")) for peer in peers[1:]))
        for number in range(400)
    ]
    moved = [before for before, after in zip(placed, without, strict=True) if before != after]
    assert set(moved) == {peers[0]}


def test_nothing_goes_to_a_peer_before_the_first_look():
    breaker = Breaker()
    assert breaker.is_open
    assert breaker.retry_at == -math.inf
    breaker.reached()
    assert not breaker.is_open


def test_one_that_cannot_be_reached_is_left_alone_at_once_and_others_after_some_failures():
    breaker = Breaker()
    breaker.reached()
    assert [breaker.failed(0) for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    breaker.worked()
    assert breaker.missed(0)
    assert not breaker.missed(0)  # it was left alone before
    assert breaker.unreachable == 2


def test_an_answer_between_two_failures_forgets_the_first_and_a_look_does_not():
    breaker = Breaker()
    for _ in range(3 * FAILURES):
        breaker.worked()
        assert not breaker.failed(0)
    for _ in range(FAILURES - 2):
        breaker.reached()
        assert not breaker.failed(0)
    breaker.reached()
    assert breaker.failed(0)


def test_after_a_look_at_one_that_requests_failed_at_the_next_that_fails_leaves_it_alone_for_longer():
    breaker = Breaker()
    breaker.worked()
    for _ in range(FAILURES):
        breaker.failed(0)
    pauses = [breaker.retry_at]
    for _ in range(3):
        breaker.reached()
        assert not breaker.is_open
        assert breaker.failed(0)
        pauses.append(breaker.retry_at)
    assert pauses == [FIRST_PAUSE * 2**number for number in range(4)]


def test_pauses_double_up_to_a_bound_and_start_anew():
    breaker = Breaker()
    breaker.reached()
    pauses = []
    for _ in range(10):
        breaker.missed(100)
        pauses.append(breaker.retry_at - 100)
    assert pauses == [min(FIRST_PAUSE * 2**number, LONGEST_PAUSE) for number in range(10)]
    breaker.reached()
    breaker.missed(100)
    assert breaker.retry_at == 100 + FIRST_PAUSE


def test_looks_of_those_in_a_hurry_do_not_make_the_pause_longer():
    breaker = Breaker()
    breaker.reached()
    breaker.missed(100)
    for _ in range(5):
        breaker.missed(100.5, lengthen=False)
    assert breaker.retry_at == 100 + FIRST_PAUSE
