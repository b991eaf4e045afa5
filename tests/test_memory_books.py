"""What the planner is told of memory: the guard's measurements beside the books."""

from itertools import count

from mlxd.daemon.memory_books import MemoryBooks
from mlxd.memory.footprint import Footprint, MemoryLimits
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.outside import Strain, StrainLevel

LIMITS = MemoryLimits(ceiling_bytes=1000, soft_bytes=900, limit="memory.ceiling")


class Probe:
    """Measures what the test says."""

    def __init__(self, *, cache: int = 0) -> None:
        self.used = 100
        self.cache = cache
        self.strain = Strain()

    def sample(self) -> Footprint:
        return Footprint(self.used, 0, self.cache, 10_000, 5_000, strain=self.strain)


def books(probe: Probe, **options) -> MemoryBooks:
    seconds = count(100.0)
    return MemoryBooks(MemoryGuard(probe, LIMITS, lambda: next(seconds)), **options)


def test_free_buffers_and_kept_prefixes_are_not_in_use():
    reading = books(Probe(cache=30), prefixes=lambda: 20)(fresh=True)
    assert (reading.measured, reading.prefixes) == (50, 20)


def test_without_pressure_the_limit_is_what_holds():
    reading = books(Probe())(fresh=True)
    assert (reading.limit, reading.present_limit) == (900, 900)


def test_while_others_press_less_holds_and_the_limit_is_what_it_was():
    probe = Probe()
    tell = books(probe)
    probe.used, probe.strain = 400, Strain(StrainLevel.WARN)
    reading = tell(fresh=True)
    assert reading.limit == 900
    assert reading.present_limit == tell.guard.soft_now < 900


def test_the_base_is_what_is_in_use_without_an_engine_and_stays():
    probe, loaded = Probe(), False
    tell = books(probe, has_engines=lambda: loaded)
    assert tell(fresh=True).base == 100
    probe.used = 500
    assert tell(fresh=True).base == 100
    tell.reopen_base()
    loaded = True
    assert tell(fresh=True).base == 100
    loaded = False
    assert tell(fresh=True).base == 500
