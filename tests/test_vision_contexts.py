"""What rides along a batch's caches for each row: nothing is lost or mixed up, however rows join, part and leave."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxd.engines.vision_model import RowStates
from mlxd.engines.vision_rows import TEXT, ImageFeatures, RowContext, RowContexts, Window


@dataclass
class Told:
    """One row as a list tells it: for each token of its prompt the number of its feature, None for text, and its
    position; `done` are processed, `left` those of the padded columns to come.
    """

    tokens: list[int | None]
    positions: list[int] | None
    shift: int
    done: int = 0
    left: int | None = None

    def context(self) -> RowContext:
        """The same as the engine has it, with images of one to three tokens."""
        places = [place for place, token in enumerate(self.tokens) if token is not None]
        features, taken = [], 0
        while taken < len(places):
            size = 1 + (taken + len(self.tokens)) % 3
            rows = mx.array([[float(self.tokens[place])] for place in places[taken : taken + size]])
            features.append(ImageFeatures(rows, [rows + 0.25, rows + 0.5]))
            taken += size
        if self.positions is None:
            return RowContext(np.array(places, np.int64), features)
        told = np.stack([np.array(self.positions, np.int32) + axis for axis in range(3)])
        return RowContext(np.array(places, np.int64), features, told, self.shift)

    def seen(self, columns: int) -> tuple[list[int], list[float], list[int]]:
        """What a step of so many columns has of it: the columns of images, their features, and positions."""
        taken = columns if self.left is None else min(columns, self.left)
        start, self.done = self.done, self.done + taken
        if self.left is not None:
            self.left -= taken
        window = range(start, self.done)
        images = [place for place in window if place < len(self.tokens) and self.tokens[place] is not None]
        return (
            [place - start for place in images],
            [float(self.tokens[place]) for place in images],
            [self._position(place) for place in window],
        )

    def _position(self, place: int) -> int:
        if self.positions is None:
            return place
        return self.positions[place] if place < len(self.tokens) else place + self.shift


def of_window(window: Window) -> tuple[list[int], list[float], list[int]]:
    """The same of a window; deeper layers' features and the other axes go along."""
    columns = window.row.columns_in(window.start, window.stop).tolist()
    positions = window.row.positions_of(window.start, window.stop)
    assert positions.shape == (3, window.stop - window.start)
    if window.row.positions is not None:
        inside = positions[:, : max(0, window.row.positions.shape[1] - window.start)]
        assert (inside == inside[:1] + np.arange(3)[:, None]).all()
    features = window.features
    if features is None:
        return columns, [], positions[0].tolist()
    rows = features.rows[:, 0].tolist()
    assert [layer[:, 0].tolist() for layer in features.deep] == [[row + more for row in rows] for more in (0.25, 0.5)]
    return columns, rows, positions[0].tolist()


@dataclass
class Both:
    """A batch, and what is told of it."""

    contexts: RowContexts
    told: list[Told] = field(default_factory=list)

    def advance(self, columns: int) -> None:
        windows = self.contexts.advance(columns)
        assert [of_window(window) for window in windows] == [told.seen(columns) for told in self.told]
        assert self.contexts.done == [told.done for told in self.told]

    def check(self) -> None:
        assert len(self.contexts.rows) == len(self.told)
        assert self.contexts.size() == max((told.done for told in self.told), default=0)
        assert self.contexts.empty() == all(told.done == 0 for told in self.told)
        assert self.contexts.nbytes == 0
        # what no token needs any more is not held
        for row, told in zip(self.contexts.rows, self.told, strict=True):
            if told.done >= len(told.tokens):
                assert not row.features


NUMBERS = iter(range(1, 10**9))
ROWS = st.builds(
    lambda tokens, counted, shift: Told(
        [next(NUMBERS) if image else None for image in tokens],
        None if counted else [7 * place % 11 for place in range(len(tokens))],
        0 if counted else shift,
    ),
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.booleans(),
    st.integers(-5, 5),
)
BATCHES = st.lists(ROWS, min_size=1, max_size=3)


def batch_of(rows: list[Told]) -> Both:
    return Both(RowContexts.merge([RowContexts([row.context()], [row.done]) for row in rows]), rows)


def step(both: Both, data: st.DataObject) -> None:
    both.advance(data.draw(st.integers(1, 5)))


def padded_steps(both: Both, data: st.DataObject) -> None:
    lengths = [data.draw(st.integers(0, 5)) for _ in both.told]
    both.contexts.prepare(lengths=lengths, right_padding=[max(lengths) - length for length in lengths])
    for told, length in zip(both.told, lengths, strict=True):
        told.left = length
    for columns in data.draw(st.sampled_from([[max(lengths)], [1] * max(lengths), [2, max(lengths)]])):
        both.advance(columns)
    both.contexts.finalize()
    for told in both.told:
        told.left = None


def join(both: Both, data: st.DataObject) -> None:
    more = batch_of(data.draw(BATCHES))
    both.contexts.extend(more.contexts)
    both.told += more.told


def leave(both: Both, data: st.DataObject) -> None:
    keep = data.draw(st.lists(st.sampled_from(range(len(both.told))), unique=True).map(sorted))
    both.contexts.filter(keep if data.draw(st.booleans()) else mx.array(keep, mx.int32))
    both.told = [both.told[index] for index in keep]


def take_out(both: Both, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(both.told) - 1))
    Both(both.contexts.extract(index), [copy.copy(both.told[index])]).advance(data.draw(st.integers(1, 3)))


def part(both: Both, _: st.DataObject) -> None:
    """As mlx-lm takes the rows whose prompts are complete out of a batch."""
    other = Both(copy.deepcopy(both.contexts), both.told[1::2])
    both.told = both.told[::2]
    count = len(both.told) + len(other.told)
    both.contexts.filter(range(0, count, 2))
    other.contexts.filter(range(1, count, 2))
    other.advance(1)
    other.check()


OPERATIONS = st.lists(st.sampled_from([step, padded_steps, join, leave, take_out, part]), max_size=8)


@settings(max_examples=300, deadline=None)
@given(BATCHES, OPERATIONS, st.data())
def test_rows_keep_what_is_theirs_whatever_becomes_of_their_batch(rows, operations, data):
    both = batch_of(rows)
    for operation in operations:
        if both.told:
            operation(both, data)
        both.check()


@given(ROWS, st.integers(0, 12), st.integers(0, 12), st.integers(1, 6))
def test_a_row_that_was_cut_back_goes_on_from_there(row, done, back, columns):
    contexts = RowContexts([row.context()], [done])
    assert contexts.is_trimmable()
    assert contexts.trim(back) == back
    row.done = max(0, done - back)
    Both(contexts, [row]).advance(columns)


def test_a_row_of_text_counts_its_positions_and_has_no_features():
    contexts = RowContexts()
    (first,), (second,) = contexts.advance(3), contexts.advance(2)
    assert (first.row, first.features) == (TEXT, None)
    assert of_window(first) == ([], [], [0, 1, 2])
    assert of_window(second) == ([], [], [3, 4])


def test_features_are_let_go_with_the_step_that_has_the_last_of_them():
    row = Told([None, 1, 2, None], None, 0)
    contexts = RowContexts([row.context()], [0])
    contexts.advance(2)
    assert contexts.rows[0].features
    (window,) = contexts.advance(1)
    assert window.features is not None
    assert not contexts.rows[0].features


def states(rows: int, value: float | None) -> RowStates:
    """States of so many rows; None for rows that no step has seen."""
    made = RowStates.merge([RowStates(1) for _ in range(rows)])
    if value is not None:
        made[0] = mx.full((rows, 2), value)
    return made


def test_recurrent_states_of_fresh_rows_are_nothing_beside_those_of_others():
    joined = states(2, None)
    joined.extend(states(1, 5.0))
    joined.extend(states(2, None))
    assert joined.batch_size == 5
    assert joined[0][:, 0].tolist() == [0, 0, 5, 0, 0]
    joined.filter([1, 2])
    assert (joined.batch_size, joined[0][:, 0].tolist()) == (2, [0, 5])
    assert joined.extract(1)[0].tolist() == [[5, 5]]


def test_fresh_rows_may_leave_before_any_step_saw_them():
    joined = states(3, None)
    joined.filter([2])
    joined.extend(states(1, 5.0))
    assert joined[0][:, 0].tolist() == [0, 5]


def test_rows_padded_on_the_right_are_told_by_their_lengths_and_never_by_a_padding_on_the_left():
    joined = states(2, None)
    joined.prepare(lengths=[3, 1])
    assert joined.left_padding is None
    assert joined.make_mask(3).tolist() == [[True, True, True], [True, False, False]]
    joined.finalize()
    assert joined.make_mask(3) is None
