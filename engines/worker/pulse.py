"""Tells the daemon, again and again, that the worker is alive, and how its engine is."""

from __future__ import annotations

import sys
import threading
from typing import Any

from mlxd.engines.loop import EngineLoop
from mlxd.engines.prompt_price import PromptPrice
from mlxd.engines.transients import Transients
from mlxd.engines.worker.channel import Channel
from mlxd.engines.worker.to_daemon import Beat, Note

# Seconds between two beats.
BEAT = 0.5


class Pulse:
    """Beats on a thread of its own; `note` is called on the lane."""

    def __init__(self, channel: Channel, loop: EngineLoop[Any, Any]) -> None:
        self._channel = channel
        self._loop = loop
        self._price: Any = None
        self._stopped = threading.Event()
        loop.on_note = self.note

    def start(self) -> None:
        """Begin to beat."""
        threading.Thread(target=self._main, name="pulse", daemon=True).start()

    def beat(self) -> None:
        """One beat, now."""
        self._channel.send(Beat(self._loop.heartbeat_age(), *_mlx_counters()))

    def note(self) -> None:
        """Tell what the loop has noted."""
        price = self._loop.price
        changed = None if price is self._price else price
        self._price = price
        self._channel.send(
            Note(
                self._loop.stats,
                list(self._loop.statuses),
                changed if isinstance(changed, PromptPrice) else None,
                changed if isinstance(changed, Transients) else None,
            )
        )

    def _main(self) -> None:
        while not self._stopped.wait(BEAT):
            self.beat()


def _mlx_counters() -> tuple[int, int, int]:
    """Bytes of MLX's allocator that are active, that are cached, and the most that were active; 0 without MLX."""
    core = sys.modules.get("mlx.core")
    # another thread may be importing it
    if core is None or not hasattr(core, "get_cache_memory") or not hasattr(core, "get_peak_memory"):
        return 0, 0, 0
    return core.get_active_memory(), core.get_cache_memory(), core.get_peak_memory()
