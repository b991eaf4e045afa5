"""Which rows share a padded batch."""

from hypothesis import given
from hypothesis import strategies as st

from mlxd.engines.grouping import MOST_GROUPS, choose_group, padding

LENGTHS = st.lists(st.lists(st.integers(1, 10_000), min_size=1, max_size=8), max_size=MOST_GROUPS)


def test_a_batch_is_as_long_as_its_longest_row():
    assert padding([10, 10, 10]) == 0
    assert padding([10, 1]) == 9
    assert padding([]) == 0


def test_a_row_joins_rows_of_its_own_length():
    assert choose_group([[1000, 1100], [10, 20]], 15, most_padding=5000) == 1
    assert choose_group([[1000, 1100], [10, 20]], 900, most_padding=5000) == 0


def test_a_very_long_row_gets_a_batch_of_its_own():
    assert choose_group([[10, 20, 30]], 8000, most_padding=5000) == 1


def test_a_short_row_does_not_join_a_very_long_one():
    assert choose_group([[8000]], 10, most_padding=5000) == 1


@given(LENGTHS, st.integers(1, 10_000), st.integers(0, 20_000))
def test_a_choice_is_a_group_or_the_next_new_one_and_never_one_too_many(groups, length, most):
    index = choose_group(groups, length, most)
    assert 0 <= index <= min(len(groups), MOST_GROUPS - 1)


@given(LENGTHS, st.integers(1, 10_000), st.integers(0, 20_000))
def test_padding_stays_within_the_bound_while_there_is_a_group_left(groups, length, most):
    index = choose_group(groups, length, most)
    if len(groups) < MOST_GROUPS and index < len(groups):
        assert padding([*groups[index], length]) <= most
