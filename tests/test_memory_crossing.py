"""Crossings: one abort each, armed again only below soft."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxd.memory.crossing import CeilingEvent, CrossingDetector, RecoveredEvent, SoftEvent
from mlxd.memory.footprint import MemoryLimits, Pressure

LIMITS = MemoryLimits(ceiling_bytes=1000, soft_bytes=900, limit="memory.ceiling")


def events_of(readings, step=1.0, *, soft_repeat=5.0, settle=10.0, limits=LIMITS, marks=None):
    detector = CrossingDetector(soft_repeat, settle)
    marks = marks or [limits.soft_bytes] * len(readings)
    return [
        detector.observe(used, limits, mark, step * at)
        for at, (used, mark) in enumerate(zip(readings, marks, strict=True))
    ]


def kinds(readings, **options):
    return [[type(event).__name__[:4] for event in events] for events in events_of(readings, **options)]


def test_two_readings_above_the_ceiling_abort_once_and_one_does_not():
    assert kinds([500, 1001, 990, 1001, 1002, 1003, 1004]) == [[], ["Soft"], [], [], ["Ceil"], [], ["Soft"]]


def test_one_reading_far_above_the_ceiling_aborts_at_once_and_before_anything_else():
    assert kinds([500, 1050, 1051]) == [[], ["Soft"], ["Ceil"]]
    assert kinds([1051]) == [["Ceil", "Soft"]]


def test_the_abort_is_armed_again_only_well_below_soft():
    assert kinds([2000, 950, 2000, 2000, 901, 2000])[1:] == [[], [], [], [], ["Soft"]]
    assert kinds([2000, 900, 2000, 874, 2000])[1:] == [[], [], [], []]
    assert kinds([2000, 873, 2000])[1:] == [["Reco"], ["Ceil", "Soft"]]


def test_a_footprint_that_stays_just_within_soft_is_recovered_after_a_while():
    assert kinds([2000, 900, 899, 900, 2000], settle=2) == [["Ceil", "Soft"], [], [], ["Reco"], ["Ceil", "Soft"]]
    assert kinds([2000, 900, 899, 901, 900, 899, 2000], settle=2)[1:-1] == [[], [], [], [], []]


def test_where_soft_is_the_ceiling_swaying_around_it_is_one_crossing():
    limits = MemoryLimits(ceiling_bytes=1000, soft_bytes=1000, limit="memory.ceiling")
    swaying = kinds([1001, 1002, 999, 1001, 1002, 999, 1001, 1002, 999], limits=limits)
    assert [events for events in swaying if "Ceil" in events] == [["Ceil"]]
    assert not any("Reco" in events for events in swaying)


def test_soft_is_repeated_at_intervals_while_it_lasts_and_at_once_after_a_recovery():
    assert kinds([950] * 8, soft_repeat=3) == [["Soft"], [], [], ["Soft"], [], [], ["Soft"], []]
    assert kinds([950, 100, 950, 100]) == [["Soft"], ["Reco"], ["Soft"], ["Reco"]]
    assert kinds([950, 890, 950, 890, 890, 950]) == [["Soft"], [], [], [], [], ["Soft"]]


def test_events_carry_the_numbers_and_the_mark_that_held():
    assert events_of([1100, 10]) == [
        [
            CeilingEvent(1100, 1000, "memory.ceiling"),
            SoftEvent(1100, 900, "memory.ceiling", Pressure.CEILING),
        ],
        [RecoveredEvent(10, 900)],
    ]
    assert events_of([500, 300], marks=[400, 350]) == [
        [SoftEvent(500, 400, "memory.ceiling", Pressure.SOFT)],
        [RecoveredEvent(300, 350)],
    ]


def test_a_mark_that_comes_down_is_a_crossing_too():
    assert kinds([500, 500, 380, 380], marks=[900, 400, 400, 900]) == [[], ["Soft"], ["Reco"], []]


def test_others_pressure_neither_hastens_an_abort_nor_keeps_the_ceiling_unguarded():
    assert kinds([990] * 3, marks=[100] * 3) == [["Soft"], [], []]
    again = kinds([2000, 500, 2000], marks=[900, 100, 100])
    assert again == [["Ceil", "Soft"], [], ["Ceil"]]


@given(st.lists(st.integers(0, 1300) | st.sampled_from([873, 874, 900, 901, 1000, 1001, 1050, 1051])), st.floats(0, 9))
def test_no_two_aborts_without_a_return_and_no_crossing_missed(readings, step):
    aborted, pressed = False, False
    before = 0
    for used, events in zip(readings, events_of(readings, step, settle=1e9), strict=True):
        ceiling = [event for event in events if isinstance(event, CeilingEvent)]
        crossed = used > 1050 or (used > 1000 and before > 1000)
        assert len(ceiling) == (crossed and not aborted)
        aborted = (aborted or bool(ceiling)) and used > 873
        assert any(isinstance(event, RecoveredEvent) for event in events) == (pressed and used <= 873)
        soft = any(isinstance(event, SoftEvent) for event in events)
        assert soft or pressed or used <= 900
        assert used > 900 or not soft
        pressed, before = used > 900 or (pressed and used > 873), used


@given(st.lists(st.tuples(st.integers(0, 1300), st.integers(0, 900)), max_size=40), st.floats(0, 9))
def test_aborts_are_the_same_wherever_the_mark_is(readings, step):
    used = [reading for reading, _ in readings]
    marks = [mark for _, mark in readings]

    def aborts(events):
        return [any(isinstance(event, CeilingEvent) for event in each) for each in events]

    assert aborts(events_of(used, step, marks=marks)) == aborts(events_of(used, step))


def test_memory_is_short_from_the_soft_event_until_the_recovered_one():
    detector, limits = CrossingDetector(), MemoryLimits(1000, 900, "memory.ceiling")
    assert not detector.is_short
    detector.observe(950, limits, 900, 0.0)
    detector.observe(890, limits, 900, 1.0)
    assert detector.is_short
    detector.observe(800, limits, 900, 2.0)
    assert not detector.is_short
