"""What every handler needs, as one frozen record under one key of the application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version

from aiohttp import web

from mlxd.daemon.api.image_room import ImageRoom
from mlxd.daemon.api.running import RunningRequests
from mlxd.daemon.breadcrumbs_work import AtWork, unrecorded
from mlxd.daemon.downloads.pulls import Pulls
from mlxd.daemon.feed import Feed
from mlxd.daemon.key_ring import KeyRing
from mlxd.daemon.live import Live
from mlxd.daemon.log_tail import LogTail
from mlxd.daemon.memory_books import MemoryBooks
from mlxd.daemon.metrics import Metrics
from mlxd.daemon.model_removal import ModelRemover
from mlxd.daemon.peers.peers import Peers
from mlxd.daemon.reload import Reloader
from mlxd.daemon.settings import Settings
from mlxd.daemon.tokenizer_threads import TokenizerThreads
from mlxd.memory.guard import MemoryGuard
from mlxd.registry.names import NameTable
from mlxd.registry.registry import ModelRegistry

BODIES_AT_A_TIME = 2


@dataclass(frozen=True, slots=True)
class Services:
    """Lives as long as the daemon. `clock` is monotonic, `wall_clock` and `started` count from the epoch; seconds.

    `tokenizers` runs templates and tokenisers, off the event loop. `bodies` bounds how many large bodies are read at a
    time: the threads that do keep the GIL from the event loop. `image_room` bounds the memory of images. `loop_lag`
    gives the seconds by which the event loop is late. `at_work` is held while an engine has requests. `settings` and
    `names` are those in effect: whoever needs the same ones over an await keeps them.
    """

    registry: ModelRegistry
    live: Live
    reloader: Reloader
    tokenizers: TokenizerThreads
    running: RunningRequests
    guard: MemoryGuard
    books: MemoryBooks
    keys: KeyRing
    bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(BODIES_AT_A_TIME))
    image_room: ImageRoom = field(default_factory=ImageRoom)
    metrics: Metrics = field(default_factory=Metrics)
    feed: Feed = field(default_factory=Feed)
    pulls: Pulls = field(default_factory=Pulls)
    peers: Peers = field(default_factory=Peers)
    remover: ModelRemover = field(default_factory=ModelRemover)
    log_tail: LogTail = field(default_factory=LogTail)
    at_work: AtWork = unrecorded
    loop_lag: Callable[[], float] = lambda: 0.0
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    started: float = field(default_factory=time.time)
    version: str = field(default_factory=lambda: version("mlxd"))

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return self.live.settings

    @property
    def names(self) -> NameTable:
        """What names mean now."""
        return self.live.names


SERVICES = web.AppKey("services", Services)


def services_of(request: web.Request) -> Services:
    """The services of the application that serves this request."""
    return request.app[SERVICES]
