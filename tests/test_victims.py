"""The cheapest set of models that frees enough: idle time first, then bytes over the need, then seconds of loading."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxd.registry.ledger import Reserve
from mlxd.registry.victims import Candidate, choose


def candidate(name: str, size: int, idle: float = 100.0, reload: float = 1.0) -> Candidate:
    return Candidate(name, size, idle, reload)


def test_nobody_leaves_when_nothing_is_short():
    assert choose([candidate("a", 40)], Reserve()) == ()


def test_nobody_leaves_when_all_of_them_are_not_enough():
    assert choose([candidate("a", 40), candidate("b", 40)], Reserve(81)) is None
    assert choose([candidate("a", 40)], Reserve(0, places=2)) is None


def test_the_one_that_was_idle_for_much_longer_leaves_though_another_is_a_better_fit():
    assert choose([candidate("old", 90, idle=1000.0), candidate("fits", 40, idle=10.0)], Reserve(40)) == ("old",)


def test_of_models_idle_for_about_as_long_the_better_fit_leaves():
    pool = [candidate("big", 90, idle=120.0), candidate("fits", 40, idle=100.0)]
    assert choose(pool, Reserve(40)) == ("fits",)


def test_one_large_model_leaves_rather_than_three_small_ones_that_take_longer_to_load():
    small = [candidate(name, 20, reload=2.0) for name in "abc"]
    assert choose([*small, candidate("large", 62, reload=3.0)], Reserve(60)) == ("large",)


def test_of_equal_fits_the_one_that_loads_faster_leaves():
    pool = [candidate("slow", 40, reload=9.0), candidate("fast", 40, reload=1.0)]
    assert choose(pool, Reserve(40)) == ("fast",)


def test_of_models_alike_in_all_else_the_least_recently_used_leaves():
    assert choose([candidate("new", 40, idle=100.0), candidate("old", 40, idle=101.0)], Reserve(40)) == ("old",)


def test_a_place_in_memory_is_made_by_the_smallest_of_those_alike():
    assert choose([candidate("a", 40), candidate("b", 10)], Reserve(0, places=1)) == ("b",)


def test_those_that_leave_are_named_longest_idle_first():
    pool = [candidate("b", 40, idle=90.0), candidate("a", 40, idle=1000.0)]
    assert choose(pool, Reserve(80)) == ("a", "b")


def test_of_many_models_a_spare_one_stays():
    pool = [candidate(f"m{number}", 10 if number else 1, idle=1000.0 - number) for number in range(20)]
    assert choose(pool, Reserve(30)) == ("m1", "m2", "m3")


@pytest.mark.parametrize("count", [3, 8, 20])
@given(data=st.data())
def test_a_set_is_enough_and_nobody_in_it_is_spare(count, data):
    pool = [
        candidate(f"m{number}", data.draw(st.integers(0, 50)), data.draw(st.floats(0, 1e4)), data.draw(st.floats(0, 9)))
        for number in range(data.draw(st.integers(0, count)))
    ]
    short = Reserve(data.draw(st.integers(0, 200)), data.draw(st.integers(0, 3)))
    chosen = choose(pool, short)
    by_name = {one.name: one for one in pool}
    if chosen is None:
        assert sum(one.bytes for one in pool) < short.bytes or len(pool) < short.places
        return
    sizes = [by_name[name].bytes for name in chosen]
    assert sum(sizes) >= short.bytes
    assert len(sizes) >= short.places
    for name, size in zip(chosen, sizes, strict=True):
        enough = sum(sizes) - size >= short.bytes and len(sizes) > short.places
        assert not enough or size == 0 or math.isclose(size, 0), f"{name} is spare"
    oldest = sorted((one.age for one in pool), reverse=True)
    for age in oldest:
        older = [one for one in pool if one.age > age]
        if sum(one.bytes for one in older) >= short.bytes and len(older) >= short.places:
            assert all(by_name[name].age > age for name in chosen), "a set of older models would have been enough"
