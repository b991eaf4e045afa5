"""Above the soft mark and ever further: that is told without waiting for the next repetition."""

from __future__ import annotations

from mlxd.memory.crossing import CrossingDetector, SoftEvent
from mlxd.memory.footprint import MemoryLimits

LIMITS = MemoryLimits(ceiling_bytes=1000, soft_bytes=900, limit="memory.ceiling")


def told(*readings: tuple[int, int]) -> list[bool]:
    """For each (footprint, mark), a tenth of a second apart, whether a footprint above the mark is told."""
    detector = CrossingDetector()
    seen = [detector.observe(used, LIMITS, mark, at / 10) for at, (used, mark) in enumerate(readings)]
    return [any(isinstance(event, SoftEvent) for event in events) for events in seen]


def test_a_mark_that_goes_on_falling_is_told_again_at_once():
    assert told((500, 490), (500, 470), (500, 450)) == [True, True, True]


def test_it_is_told_even_when_what_was_done_had_been_enough_meanwhile():
    assert told((500, 490), (480, 485), (480, 450)) == [True, False, True]


def test_a_footprint_that_sways_by_less_is_told_once():
    assert told((910, 900), (890, 900), (927, 900), (890, 900), (910, 900)) == [True, False, False, False, False]


def test_a_mark_that_others_push_down_by_little_is_told_too():
    assert told((500, 490), (495, 497), (500, 489)) == [True, False, True]
