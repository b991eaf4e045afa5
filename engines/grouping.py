"""Which rows may share a batch. A batch is padded: it costs its rows times its longest row."""

from __future__ import annotations

from collections.abc import Sequence

# Batches of one model; each one reads all weights once a step.
MOST_GROUPS = 4


def padding(lengths: Sequence[int]) -> int:
    """Tokens of a padded batch that belong to no row."""
    return len(lengths) * max(lengths, default=0) - sum(lengths)


def choose_group(groups: Sequence[Sequence[int]], length: int, most_padding: float) -> int:
    """The index of the group that a row of `length` tokens joins; `len(groups)` for a new one.

    `groups` holds the lengths of their rows. A row joins where it adds the least padding, as long as that group
    then has at most `most_padding` tokens of it: past that, reading the weights once more is cheaper.
    """
    after = [padding([*lengths, length]) for lengths in groups]
    order = sorted(range(len(groups)), key=lambda index: after[index] - padding(groups[index]))
    for index in order:
        if after[index] <= most_padding:
            return index
    if len(groups) < MOST_GROUPS:
        return len(groups)
    return order[0]
