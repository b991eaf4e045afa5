"""All other ranks of a model, as rank 0 sees them: started, told what to do, watched, and ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.sharded.follower import BEAT
from mlxd.engines.sharded.orders import Join, Leave, Prepare, Reach
from mlxd.engines.sharded.rank import Rank
from mlxd.engines.sharded.rendezvous import Place
from mlxd.engines.sharded.reports import Failed, Loaded, Prepared, Progress, Reached
from mlxd.engines.sharded.sameness import FILES, sameness, weight_bytes
from mlxd.engines.shards import RankLost, Shards
from mlxd.engines.types import EngineConfig, LoadProgress

# Seconds between two looks at whether the load was cancelled.
LOOK = 0.1
# Seconds in which a rank whose loss has failed a step is known to be gone.
KNOWN = 2.0
# Seconds in which it is known if its loss has failed a step of another rank.
BEFORE = 0.5
# How much is known of what was lost: a rank whose step has failed may be one that another has left.
GUESSED, SURE = 1, 2

R = TypeVar("R")


class Ranks:
    """Made on the lane, and told from it. `lost` is called on another thread when a rank is gone or silent: the others
    cannot go on without it.
    """

    def __init__(self, config: EngineConfig, shards: Shards, lost: Callable[[RankLost], None]) -> None:
        self._config = config
        self._shards = shards
        self._lost = lost
        self._reports: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._progress: dict[int, LoadProgress] = {}
        self._ranks: list[Rank] = []
        self._closing = threading.Event()
        self._saying = threading.Lock()
        self._said = 0
        self._serving = False
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)

    def start(self) -> None:
        """Start all of them. Raises LoadError."""
        for rank in range(1, self._shards.size):
            try:
                self._ranks.append(Rank(self._shards, rank, self._take, self._rank_lost))
            except OSError as error:
                message = f"{self._shards.title(rank)} could not be started: {error}"
                raise LoadError(LoadFailure.INTERNAL, message) from error
        for started in self._ranks:
            started.tell(Prepare(started.rank, self._config, self._shards))
        self._watcher.start()

    def meet(self, cancelled: Callable[[], bool]) -> list[str]:
        """Wait until all have the model and room for it, and reach each other; their addresses. Raises LoadError."""
        place = Place(self._shards, 0)
        try:
            prepared = self._gather(Prepared, cancelled, self._shards.start_patience)
            self._check(prepared)
            addresses = [place.address, *(answer.address for answer in prepared)]
            self.tell(Reach(addresses))
            place.reach(addresses)
            self._gather(Reached, cancelled, self._shards.start_patience)
        finally:
            place.leave()
        self.tell(Join())
        return addresses

    def loaded(self, cancelled: Callable[[], bool]) -> int:
        """Wait until all have loaded; the bytes of weights that those of this machine have. Raises LoadError."""
        answers = self._gather(Loaded, cancelled, None)
        self._serving = True
        return sum(answer.weight_bytes for rank, answer in zip(self._ranks, answers, strict=True) if rank.here)

    def tell(self, order: msgspec.Struct) -> None:
        """Send an order to all."""
        for rank in self._ranks:
            rank.tell(order)

    @property
    def loading(self) -> LoadProgress:
        """How far all of them are together."""
        parts = list(self._progress.values())
        return LoadProgress(sum(one.bytes_done for one in parts), sum(one.bytes_total for one in parts))

    @property
    def pids(self) -> dict[str, int]:
        """Their processes, or those of their remote shells, by their titles."""
        return {rank.title: rank.pid for rank in self._ranks}

    @property
    def rooms(self) -> dict[str, int]:
        """Bytes that ranks on other hosts may still take there, by their titles."""
        return {rank.title: rank.room for rank in self._ranks if not rank.here and rank.room is not None}

    def explain(self) -> None:
        """A step has failed. If that is for a rank that is gone, `lost` is about to be called: this waits for it."""
        self._closing.wait(KNOWN)

    def close(self) -> None:
        """End all of them; they are gone then. Idempotent."""
        self._closing.set()
        # it must not write to what is closed here
        if self._watcher.is_alive():
            self._watcher.join()
        for rank in self._ranks:
            rank.leave()
        self.tell(Leave())
        for rank in self._ranks:
            rank.end()
        self._ranks.clear()

    def _gather(self, kind: type[R], cancelled: Callable[[], bool], patience: float | None) -> list[R]:
        answers: dict[int, R] = {}
        until = None if patience is None else time.monotonic() + patience
        while len(answers) < len(self._ranks):
            if cancelled():
                raise LoadError(LoadFailure.CANCELLED, "the load was cancelled")
            try:
                rank, report = self._reports.get(timeout=LOOK)
            except queue.Empty:
                if until is not None and time.monotonic() > until:
                    self._late(set(range(1, self._shards.size)) - answers.keys(), patience)
                continue
            if isinstance(report, Failed):
                raise LoadError(LoadFailure(report.reason), f"{self._shards.title(rank)}: {report.message}")
            if isinstance(report, kind):
                answers[rank] = report
        return [answers[rank] for rank in sorted(answers)]

    def _check(self, prepared: list[Prepared]) -> None:
        """Raises LoadError for a host that is not like this one, or has no room for its part of the weights."""
        own, part = sameness(self._config.path), weight_bytes(self._config.path) // self._shards.size
        for rank, answer in enumerate(prepared, start=1):
            for what, here in own.items():
                if answer.same.get(what) != here:
                    self._differ(rank, what, here, answer.same.get(what, "none"))
            if answer.room is not None and not self._shards.hosts[rank].here and answer.room < part:
                message = f"{self._shards.title(rank)} has {answer.room} bytes left of the {part} for its part"
                raise LoadError(LoadFailure.OUT_OF_MEMORY, message)

    def _differ(self, rank: int, what: str, here: str, there: str) -> NoReturn:
        title = self._shards.title(rank)
        if what == FILES:
            message = f"{title} has other files in {self._config.path}; copy the folder of this machine there"
        else:
            message = f"{title} has {what} {there} and this machine {here}; install the same version on all hosts"
        raise LoadError(LoadFailure.UNSUPPORTED, message)

    def _late(self, ranks: set[int], patience: float | None) -> NoReturn:
        titles = " and ".join(self._shards.title(rank) for rank in sorted(ranks))
        message = f"nothing was heard of {titles} within {patience:.0f} s; is the host reachable by the remote shell?"
        raise LoadError(LoadFailure.STALLED, message)

    def _take(self, rank: int, report: Any) -> None:
        if isinstance(report, Progress):
            self._progress[rank] = LoadProgress(report.done, report.total)
        elif isinstance(report, Failed) and self._serving:
            self._rank_failed(f"{self._shards.title(rank)} has failed: {report.message}")
        else:
            self._reports.put((rank, report))

    def _rank_lost(self, rank: Rank) -> None:
        if self._say(SURE, RankLost(f"{rank.title} is gone", last=False)):
            self._lost(RankLost(f"{rank.title} is gone: {rank.why()}"))

    def _rank_failed(self, why: str) -> None:
        # the loss of a rank fails the steps of the others, and one of those may be heard of first
        if self._say(GUESSED, RankLost(why, last=False)):
            self._closing.wait(BEFORE)
            self._say(SURE, RankLost(why))

    def _watch(self) -> None:
        """Tell the ranks that this one is there, and see that they are."""
        while not self._closing.wait(BEAT):
            for rank in list(self._ranks):
                rank.ping()
                silent = time.monotonic() - rank.heard_at
                if rank.beats and self._shards.patience is not None and silent > self._shards.patience:
                    self._say(SURE, RankLost(f"{rank.title} said nothing for {silent:.0f} s"))
                    return

    def _say(self, level: int, lost: RankLost) -> bool:
        """Once for a level, and not after a higher one: others are lost because of the first. At once: MLX may crash
        this process at any moment when a rank is gone: its ring clears lists that others write to.
        """
        with self._saying:
            news = level > self._said and not self._closing.is_set()
            if news:
                self._said = level
                self._lost(lost)
        return news
