"""The soft mark: down at once when outside needs the memory, back only after it was better for a while."""

from __future__ import annotations

import pytest
from doc_pages import page, rows, words
from hypothesis import given
from hypothesis import strategies as st

from mlxd.memory.footprint import Footprint, MemoryLimits
from mlxd.memory.mark_news import MarkNews, News
from mlxd.memory.outside import CALM, Cause, Mark, Strain, StrainLevel
from mlxd.memory.soft_mark import HOLD_S, STEP_S, SoftMark

GIB = 1 << 30
LIMITS = MemoryLimits(ceiling_bytes=1000, soft_bytes=900, limit="memory.ceiling")
WARN = Strain(StrainLevel.WARN, "PSI some 23 %")
CRITICAL = Strain(StrainLevel.CRITICAL, "PSI full 11 %")


def footprint(used=500, *, available=10_000, total=0, strain=CALM, cgroup=None, left=None, cache=0):
    return Footprint(used, 0, cache, total, available, cgroup_limit=cgroup, cgroup_available=left, strain=strain)


class Follower:
    """A mark over measurements of which each comes a second after the last."""

    def __init__(self, limits=LIMITS, *, machine_counts=True):
        self.limits = limits
        self.now = 0.0
        self._mark = SoftMark(machine_counts=machine_counts)

    def see(self, measured, after=1.0):
        self.now += after
        return self._mark.update(self.limits, measured, self.now)

    def bytes_of(self, *measured):
        return [self.see(each).bytes for each in measured]


def test_with_enough_outside_the_mark_is_the_configured_limit():
    assert Follower().see(footprint()) == Mark(900)
    assert Follower().see(footprint(available=400)) == Mark(900)
    assert Follower().see(footprint(cgroup=1600, left=500)) == Mark(900)


def test_what_others_took_of_the_machine_comes_off_the_mark_in_steps_of_a_hundredth():
    assert Follower().see(footprint(available=399)) == Mark(891, Cause.MACHINE)
    assert Follower().see(footprint(available=391)) == Mark(891, Cause.MACHINE)
    assert Follower().see(footprint(available=390)) == Mark(882, Cause.MACHINE)
    assert Follower().see(footprint(0, available=0, total=1600)) == Mark(0, Cause.MACHINE)


def test_a_margin_is_left_to_others_a_sixteenth_of_the_machine_or_a_gib():
    limits = MemoryLimits(200 * GIB, 100 * GIB, "memory.ceiling")
    assert Follower(limits).see(footprint(40 * GIB, available=61 * GIB, total=128 * GIB)) == Mark(100 * GIB)
    assert Follower(limits).see(footprint(40 * GIB, available=60 * GIB, total=128 * GIB)).bytes == 99 * GIB
    assert Follower(limits).see(footprint(40 * GIB, available=60 * GIB, total=0)) == Mark(100 * GIB)
    small = Follower().see(footprint(500, available=400, total=320))
    assert small == Mark(873, Cause.MACHINE)


def test_a_cgroup_that_others_fill_brings_the_mark_down_and_keeps_a_sixteenth():
    assert Follower().see(footprint(cgroup=1600, left=400)) == Mark(792, Cause.CGROUP)
    assert Follower().see(footprint(cgroup=1600, left=300)).reason == "cgroup available"


def test_the_lowest_of_all_that_has_a_say_holds():
    measured = footprint(500, available=300, cgroup=1600, left=200, strain=WARN)
    assert Follower().see(measured) == Mark(500, Cause.STRAIN, "PSI some 23 %")
    assert Follower().see(footprint(500, available=50, cgroup=1600, left=200)) == Mark(549, Cause.MACHINE)


def test_own_growth_and_mlxs_cache_do_not_move_the_mark():
    own = [footprint(used, available=1100 - used, total=1600, cache=used // 3) for used in (100, 500, 700, 300)]
    assert len(set(Follower(MemoryLimits(2000, 1500, "x")).bytes_of(*own))) == 1


def test_on_macos_available_memory_says_nothing():
    follower = Follower(machine_counts=False)
    assert follower.see(footprint(available=0, total=16 * GIB)) == Mark(900)
    assert follower.see(footprint(available=0, strain=WARN)).cause is Cause.STRAIN


def test_under_a_warning_the_footprint_stays_what_it_was_when_that_began():
    follower = Follower()
    assert follower.bytes_of(*(footprint(used, strain=WARN) for used in (500, 520, 480, 700))) == [500] * 4
    assert follower.see(footprint(500, strain=WARN)).reason == "memory pressure (PSI some 23 %)"


def test_critical_pressure_takes_a_tenth_and_another_every_five_seconds_down_to_a_floor():
    follower = Follower()
    marks = follower.bytes_of(*[footprint(800, strain=CRITICAL)] * 30)
    assert marks[:11] == [720] * 5 + [640] * 5 + [560]
    assert marks[-1] == 450
    assert min(marks) == 450


def test_a_footprint_below_the_floor_may_stay_but_not_grow_under_critical_pressure():
    assert Follower().bytes_of(*[footprint(100, strain=CRITICAL)] * 12) == [100] * 12


def test_a_warning_that_turns_critical_counts_from_what_is_used_then_and_back_again():
    follower = Follower()
    assert follower.bytes_of(footprint(800, strain=WARN), footprint(700, strain=CRITICAL)) == [800, 630]
    back = follower.bytes_of(*[footprint(650, strain=WARN)] * 8)
    assert back[:5] == [630] * 5
    assert back[-1] == 650


def test_a_level_that_flickers_makes_the_steps_no_faster():
    follower = Follower()
    marks = [
        follower.see(footprint(800, strain=CRITICAL if turn % 2 == 0 else WARN), after=0.5).bytes for turn in range(20)
    ]
    assert min(marks) >= 640


def test_after_the_pressure_the_mark_comes_back_whole_and_only_after_the_hold():
    follower = Follower()
    follower.see(footprint(500, strain=WARN))
    marks = follower.bytes_of(*[footprint(500)] * 7)
    assert marks == [500] * 5 + [900] * 2
    assert follower.see(footprint(500)) == Mark(900)


def test_the_reason_stays_for_as_long_as_the_mark_is_held():
    follower = Follower()
    follower.see(footprint(500, strain=WARN))
    assert follower.see(footprint(500)).reason == "memory pressure (PSI some 23 %)"


def test_a_hold_that_is_interrupted_begins_anew():
    follower = Follower()
    follower.see(footprint(500, strain=WARN))
    follower.bytes_of(*[footprint(500)] * 4)
    assert follower.see(footprint(480, strain=WARN)).bytes == 480
    assert follower.bytes_of(*[footprint(480)] * 6) == [480] * 5 + [900]


def test_a_return_is_to_the_worst_of_the_window():
    follower = Follower()
    follower.see(footprint(available=0))
    better = [footprint(available=available) for available in (300, 200, 310, 390, 350, 350)]
    assert follower.bytes_of(*better) == [495] * 5 + [693]


def test_other_limits_hold_at_once():
    follower = Follower()
    assert follower.see(footprint()).bytes == 900
    follower.limits = MemoryLimits(2000, 1500, "memory.ceiling")
    assert follower.see(footprint()) == Mark(1500)
    follower.limits = LIMITS
    assert follower.see(footprint()) == Mark(900)


OUTSIDE = st.builds(
    footprint,
    st.integers(0, 1200),
    available=st.integers(0, 1500),
    strain=st.sampled_from([CALM, CALM, WARN, CRITICAL]),
    cgroup=st.just(1600),
    left=st.none() | st.integers(0, 1600),
)
TIMELINE = st.lists(st.tuples(OUTSIDE, st.sampled_from([0.0, 0.1, 0.5, 1.0, 4.9, 5.0, 30.0])), max_size=40)


def target_of(measured):
    """What a mark that has seen nothing before makes of a measurement: what it falls to at once."""
    return SoftMark(machine_counts=True).update(LIMITS, measured, 0.0).bytes


@given(TIMELINE)
def test_the_mark_is_never_above_the_configured_limit_nor_above_what_others_leave(timeline):
    follower = Follower()
    for measured, after in timeline:
        mark = follower.see(measured, after)
        assert 0 <= mark.bytes <= LIMITS.soft_bytes
        assert (mark.bytes == LIMITS.soft_bytes) or mark.cause
        assert mark.bytes <= measured.bytes + measured.machine_available
        if measured.cgroup_available is not None:
            assert mark.bytes <= max(0, measured.bytes + measured.cgroup_available - 100)


@given(TIMELINE, OUTSIDE.filter(lambda measured: measured.strain is CALM))
def test_the_mark_falls_at_once(timeline, last):
    follower = Follower()
    for measured, after in timeline:
        follower.see(measured, after)
    assert follower.see(last, 0.0).bytes <= target_of(last)


@given(TIMELINE)
def test_the_mark_never_rises_within_the_hold_time_of_a_fall_or_a_rise(timeline):
    follower = Follower()
    before, moved_at = LIMITS.soft_bytes, None
    for measured, after in timeline:
        mark = follower.see(measured, after).bytes
        if mark > before:
            assert follower.now - moved_at >= HOLD_S
        if mark != before:
            moved_at = follower.now
        before = mark


@given(TIMELINE, st.integers(0, 1200))
def test_the_mark_recovers_fully_when_outside_is_calm_for_two_hold_times(timeline, used):
    """One for what is left of a window that began before, and one of its own."""
    follower = Follower()
    for measured, after in timeline:
        follower.see(measured, after)
    follower.bytes_of(*[footprint(used)] * int(2 * HOLD_S + 1))
    assert follower.see(footprint(used)) == Mark(LIMITS.soft_bytes)


@given(st.lists(st.tuples(st.integers(0, 1200), st.sampled_from([0.1, 0.5, 1.0, STEP_S])), min_size=1, max_size=40))
def test_critical_pressure_alone_never_goes_below_the_floor_or_what_was_used(timeline):
    follower = Follower()
    marks = [follower.see(footprint(used, strain=CRITICAL), after).bytes for used, after in timeline]
    assert min(marks) >= min(LIMITS.soft_bytes // 2, timeline[0][0])
    assert marks == sorted(marks, reverse=True)


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        (Mark(1), ""),
        (Mark(1, Cause.MACHINE), "machine available"),
        (Mark(1, Cause.STRAIN, "PSI some 23 %"), "memory pressure (PSI some 23 %)"),
    ],
)
def test_a_mark_says_why(mark, reason):
    assert mark.reason == reason


def test_every_reason_is_explained_to_operators():
    explained = [words(reason)[0] for reason, _ in rows(page("operations"), "When others need memory")]
    assert sorted(explained) == sorted(cause for cause in Cause if cause)


def test_news_of_the_mark_are_its_fall_what_makes_it_worse_and_its_full_return():
    news, none = MarkNews(), StrainLevel.NONE
    machine = [news.observe(Mark(bytes_, Cause.MACHINE), none, 900) for bytes_ in (880, 850, 836, 835, 860)]
    assert machine == [News.DOWN, None, None, News.DOWN, None]
    assert news.observe(Mark(834, Cause.CGROUP), none, 900) is News.DOWN
    assert news.observe(Mark(834, Cause.CGROUP), StrainLevel.WARN, 900) is News.DOWN
    assert news.observe(Mark(834, Cause.CGROUP), none, 900) is None
    assert news.observe(Mark(900), none, 900) is News.BACK
    assert news.observe(Mark(900), none, 900) is None
