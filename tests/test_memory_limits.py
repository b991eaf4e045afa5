"""Limits: what binds is named, shares and sizes are resolved, nonsense is refused."""

from __future__ import annotations

import pytest

from mlxd.memory.footprint import Footprint, MemoryLimits, Pressure
from mlxd.memory.limits import (
    CONFIGURED,
    REMEDIES,
    Bound,
    CeilingTooLow,
    SoftTooLow,
    binding,
    ceiling_bounds,
    machine_reserve,
    resolve_limits,
)
from mlxd.memory.parts import parts

GIB = 1 << 30
MIB = 1 << 20


def footprint(used=100 * MIB, *, total=64 * GIB, cgroup=None, cache=0):
    return Footprint(used, 0, cache, total, total // 2, cgroup)


@pytest.mark.parametrize(
    ("total", "reserve"), [(1, 0.5), (2, 1), (8, 1), (16, 2), (32, 4), (64, 8), (192, 8), (512, 8)]
)
def test_the_reserve_follows_the_size_of_the_machine(total, reserve):
    assert machine_reserve(total * GIB) == reserve * GIB


def test_an_automatic_ceiling_leaves_the_reserve_to_the_machine():
    limits = resolve_limits(None, 0.5, footprint(), None)
    assert limits == MemoryLimits(56 * GIB, 28 * GIB, "machine total less reserve")


@pytest.mark.parametrize(
    ("cgroup", "metal", "wired", "ceiling", "limit"),
    [
        (None, 48 * GIB, None, 48 * GIB, "Metal recommended working set"),
        (None, 48 * GIB, 60 * GIB, 56 * GIB, "machine total less reserve"),
        (None, 48 * GIB, 40 * GIB, 40 * GIB, "iogpu.wired_limit_mb"),
        (16 * GIB, 48 * GIB, None, 15 * GIB, "cgroup memory.max"),
        (1 << 50, 0, 0, 56 * GIB, "machine total less reserve"),
    ],
)
def test_the_limit_that_binds_is_named(cgroup, metal, wired, ceiling, limit):
    limits = resolve_limits(None, 0.9, footprint(cgroup=cgroup), metal, wired)
    assert (limits.ceiling_bytes, limits.limit) == (ceiling, limit)


def test_an_immediate_abort_comes_before_the_cgroup_kills():
    limits = resolve_limits(None, 0.9, footprint(cgroup=4 * GIB), None)
    assert limits.ceiling_bytes * 1.05 < 4 * GIB


def test_a_configured_ceiling_wins_over_every_other_limit():
    limits = resolve_limits(50 * GIB, 0.9, footprint(cgroup=16 * GIB), 8 * GIB)
    assert (limits.ceiling_bytes, limits.limit) == (50 * GIB, "memory.ceiling")


def test_a_float_ceiling_is_a_share_of_the_machine_and_soft_one_of_the_ceiling():
    limits = resolve_limits(0.5, 0.75, footprint(), None)
    assert (limits.ceiling_bytes, limits.soft_bytes) == (32 * GIB, 24 * GIB)


def test_the_whole_machine_may_be_asked_for_but_one_byte_is_no_share():
    assert resolve_limits(1.0, 1.0, footprint(), None).soft_bytes == 64 * GIB
    with pytest.raises(CeilingTooLow):
        resolve_limits(1, 0.9, footprint(), None)


def test_soft_may_be_given_in_bytes():
    assert resolve_limits(2 * GIB, GIB, footprint(), None).soft_bytes == GIB


@pytest.mark.parametrize("ceiling", [100 * MIB, 100 * MIB - 1])
def test_a_ceiling_not_above_the_idle_footprint_is_refused_with_the_numbers(ceiling):
    with pytest.raises(CeilingTooLow, match=str(100 * MIB)) as caught:
        resolve_limits(ceiling, 0.9, footprint(), None)
    assert (caught.value.ceiling_bytes, caught.value.footprint_bytes) == (ceiling, 100 * MIB)
    assert "memory.ceiling" in str(caught.value)


def test_an_automatic_ceiling_can_be_too_low_as_well():
    with pytest.raises(CeilingTooLow, match=r"cgroup memory\.max"):
        resolve_limits(None, 0.9, footprint(cgroup=64 * MIB), None)


@pytest.mark.parametrize(
    ("ceiling", "soft", "cgroup", "limit"),
    [
        (110 * MIB, 0.9, None, "memory.ceiling"),
        (0.5, MIB, None, "memory.soft"),
        (None, 0.9, 117 * MIB, "cgroup memory.max"),
    ],
)
def test_a_soft_limit_that_can_never_be_fallen_below_is_refused_and_what_binds_it_named(ceiling, soft, cgroup, limit):
    with pytest.raises(SoftTooLow) as caught:
        resolve_limits(ceiling, soft, footprint(cgroup=cgroup), None)
    assert caught.value.limit == limit
    assert f"({limit})" in str(caught.value)
    assert REMEDIES[limit] in str(caught.value)


@pytest.mark.parametrize(
    ("ceiling", "soft", "limit", "soft_limit"),
    [
        (None, 0.9, "machine total less reserve", "machine total less reserve"),
        (None, 8 * GIB, "machine total less reserve", "memory.soft"),
        (0.5, 1.0, "memory.ceiling", "memory.ceiling"),
        (0.5, 8 * GIB, "memory.ceiling", "memory.soft"),
        (16 * GIB, 0.9, "memory.ceiling", "memory.ceiling"),
    ],
)
def test_the_soft_limit_is_named_after_what_makes_it(ceiling, soft, limit, soft_limit):
    limits = resolve_limits(ceiling, soft, footprint(), None)
    assert (limits.limit, limits.soft_limit) == (limit, soft_limit)


def test_all_that_an_automatic_ceiling_could_come_from_is_told_the_least_first():
    assert ceiling_bounds(None, footprint(cgroup=16 * GIB), 48 * GIB) == (
        Bound("cgroup memory.max", 15 * GIB, binds=True),
        Bound("Metal recommended working set", 48 * GIB),
        Bound("machine total less reserve", 56 * GIB),
    )


@pytest.mark.parametrize(("ceiling", "place"), [(8 * GIB, 0), (0.5, 1), (1.0, 3)])
def test_a_configured_ceiling_binds_wherever_it_lies_among_the_automatic_ones(ceiling, place):
    bounds = ceiling_bounds(ceiling, footprint(cgroup=16 * GIB), 48 * GIB)
    assert [bound.binds for bound in bounds] == [index == place for index in range(4)]
    assert binding(bounds).name == CONFIGURED
    assert [bound.bytes for bound in bounds] == sorted(bound.bytes for bound in bounds)


@pytest.mark.parametrize(
    ("ceiling", "soft"),
    [
        (0, 0.9),
        (-5, 0.9),
        (True, 0.9),
        (0.0, 0.9),
        (1.1, 0.9),
        (float("nan"), 0.9),
        (float("inf"), 0.9),
        (2 * GIB, 0.0),
        (2 * GIB, 1.5),
        (2 * GIB, 0),
        (2 * GIB, 3 * GIB),
        (2 * GIB, float("nan")),
    ],
)
def test_values_out_of_range_are_refused_by_name(ceiling, soft):
    with pytest.raises(ValueError, match=r"memory\.(ceiling|soft)"):
        resolve_limits(ceiling, soft, footprint(), None)


def test_a_footprint_equal_to_a_limit_is_within_it():
    limits = MemoryLimits(100, 90, "memory.ceiling")
    readings = {used: limits.pressure(used) for used in (0, 90, 91, 100, 101)}
    assert readings == {
        0: Pressure.OK,
        90: Pressure.OK,
        91: Pressure.SOFT,
        100: Pressure.SOFT,
        101: Pressure.CEILING,
    }
    assert [str(pressure) for pressure in Pressure] == ["ok", "soft", "ceiling"]


@pytest.mark.parametrize("weights", [0, 300, 5000])
def test_parts_sum_to_the_footprint_and_the_remainder_may_be_negative(weights):
    measured = footprint(1000, cache=50)
    split = parts(measured, base_bytes=100, weights=weights, kv=20, prefix_cache=7)
    total = split.weights + split.kv + split.prefix_cache + split.mlx_cache + split.base + split.unexplained
    assert total == 1000
    assert (split.unexplained < 0) == (weights == 5000)
    assert split.mlx_cache == 50
