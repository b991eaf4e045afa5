"""A measurement of MLX's counters counts only if nobody else computed meanwhile."""

import mlx.core as mx
import pytest

from mlxd.engines.crowd import Crowd
from mlxd.engines.peak_meter import PeakMeter

SIZE = 1 << 20


def compute() -> mx.array:
    made = mx.zeros((SIZE,), dtype=mx.uint8)
    mx.eval(made)
    return made


def test_one_who_is_alone_all_the_time_is_measured():
    crowd = Crowd()
    with crowd.entered(), PeakMeter(crowd).measured() as peak:
        kept = compute()
        compute()
    assert peak.nbytes >= 2 * SIZE
    assert peak.kept == kept.nbytes


def test_beside_somebody_who_was_there_before_there_is_no_measurement():
    crowd = Crowd()
    with crowd.entered(), crowd.entered(), PeakMeter(crowd).measured() as peak:
        compute()
    assert (peak.nbytes, peak.kept) == (None, 0)


def test_when_somebody_enters_meanwhile_there_is_no_measurement_even_if_they_have_left():
    crowd = Crowd()
    with crowd.entered(), PeakMeter(crowd).measured() as peak, crowd.entered():
        compute()
    assert peak.nbytes is None


def test_those_who_left_before_do_not_matter():
    crowd = Crowd()
    with crowd.entered():
        pass
    with crowd.entered(), PeakMeter(crowd).measured() as peak:
        compute()
    assert peak.nbytes >= SIZE


def test_who_fails_inside_has_left():
    crowd = Crowd()
    with pytest.raises(RuntimeError, match="metal"), crowd.entered():
        raise RuntimeError("metal")
    with crowd.entered():
        assert crowd.alone_since() is not None


def test_nobody_is_alone_before_entering():
    assert Crowd().alone_since() is None
