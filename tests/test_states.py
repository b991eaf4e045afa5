"""The lifecycle is a table: every state and move is either in it or refused."""

import itertools

import pytest

from mlxd.registry.states import TABLE, IllegalMove, Move, State, move


@pytest.mark.parametrize(("state", "what"), list(itertools.product(State, Move)))
def test_every_move_is_in_the_table_or_refused_by_name(state, what):
    if (state, what) in TABLE:
        assert move("m", state, what) is TABLE[state, what]
        return
    with pytest.raises(IllegalMove, match=f"model m is {state}: it cannot {what}"):
        move("m", state, what)


def test_unloading_cannot_be_undone():
    targets = {TABLE[key] for key in TABLE if key[0] is State.UNLOADING}
    assert targets == {State.UNLOADED, State.FAILED}


def test_every_state_can_be_left_and_reached():
    assert {state for state, _ in TABLE} == set(State)
    assert set(TABLE.values()) == set(State)
