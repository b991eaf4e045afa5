"""`python -m mlxd.daemon.rank PID`: a rank of a model on several hosts, which measures the memory of its own host."""

from __future__ import annotations

import sys

from mlxd.daemon.memory_books import resolved_limits
from mlxd.daemon.settings import MemorySettings
from mlxd.engines.sharded.follower import main
from mlxd.memory.probe import SystemProbe


class HostMeter:
    """Measures on this host. A rank keeps to the limits that a daemon of its own would have here by itself."""

    def __init__(self) -> None:
        self._probe = SystemProbe(children=list)
        self._limits = resolved_limits(MemorySettings(), self._probe, idle_bytes=0)

    def __call__(self) -> int:
        found = self._probe.sample()
        bounds = [self._limits.soft_bytes - found.bytes, found.machine_available]
        if found.cgroup_available is not None:
            bounds.append(found.cgroup_available)
        return max(0, min(bounds))


if __name__ == "__main__":
    main(int(sys.argv[1]), HostMeter())
