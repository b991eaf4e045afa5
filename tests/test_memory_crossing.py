"""Crossings: one abort each, armed again only below soft."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxd.memory.crossing import CeilingEvent, CrossingDetector, RecoveredEvent, SoftEvent
from mlxd.memory.footprint import MemoryLimits, Pressure

LIMITS = MemoryLimits(ceiling_bytes=1000, soft_bytes=900, limit="memory.ceiling")


def events_of(readings, step=1.0, soft_repeat=5.0):
    detector = CrossingDetector(soft_repeat)
    return [detector.observe(used, LIMITS, step * at) for at, used in enumerate(readings)]


def kinds(readings, **options):
    return [[type(event).__name__[:4] for event in events] for events in events_of(readings, **options)]


def test_two_readings_above_the_ceiling_abort_once_and_one_does_not():
    assert kinds([500, 1001, 990, 1001, 1002, 1003, 1004]) == [[], ["Soft"], [], [], ["Ceil"], [], ["Soft"]]


def test_one_reading_far_above_the_ceiling_aborts_at_once_and_before_anything_else():
    assert kinds([500, 1050, 1051]) == [[], ["Soft"], ["Ceil"]]
    assert kinds([1051]) == [["Ceil", "Soft"]]


def test_the_abort_is_armed_again_only_below_soft():
    assert kinds([2000, 950, 2000, 2000, 901, 2000])[1:] == [[], [], [], [], ["Soft"]]
    assert kinds([2000, 900, 2000])[1:] == [["Reco"], ["Ceil", "Soft"]]


def test_soft_is_repeated_at_intervals_while_it_lasts_and_at_once_after_a_recovery():
    assert kinds([950] * 8, soft_repeat=3) == [["Soft"], [], [], ["Soft"], [], [], ["Soft"], []]
    assert kinds([950, 100, 950, 100]) == [["Soft"], ["Reco"], ["Soft"], ["Reco"]]


def test_events_carry_the_numbers():
    assert events_of([1100, 10]) == [
        [
            CeilingEvent(1100, 1000, "memory.ceiling"),
            SoftEvent(1100, 900, "memory.ceiling", Pressure.CEILING),
        ],
        [RecoveredEvent(10, 900)],
    ]


@given(st.lists(st.integers(0, 1300) | st.sampled_from([899, 900, 901, 999, 1000, 1001, 1050, 1051])), st.floats(0, 9))
def test_no_two_aborts_without_a_recovery_and_no_crossing_missed(readings, step):
    aborted, pressed = False, False
    before = 0
    for used, events in zip(readings, events_of(readings, step), strict=True):
        ceiling = [event for event in events if isinstance(event, CeilingEvent)]
        crossed = used > 1050 or (used > 1000 and before > 1000)
        assert len(ceiling) == (crossed and not aborted)
        aborted = (aborted or bool(ceiling)) and used > 900
        assert any(isinstance(event, RecoveredEvent) for event in events) == (pressed and used <= 900)
        soft = any(isinstance(event, SoftEvent) for event in events)
        assert soft or pressed or used <= 900
        assert used > 900 or not soft
        pressed, before = used > 900, used
