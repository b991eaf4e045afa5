"""Loads rank 0's part of a model, once the other ranks are there, and theirs beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from mlxd.engines.first_look import first_look
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.loader import LoadedText, load_text_model
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.runner_base import Measures
from mlxd.engines.sharded import orders
from mlxd.engines.sharded.agreed_model import AgreedModel
from mlxd.engines.sharded.ranks import Ranks
from mlxd.engines.sharded.rendezvous import resolved
from mlxd.engines.sharded.sharded_loader import join, split
from mlxd.engines.sharded.sharded_runner import ShardedRunner
from mlxd.engines.shards import Joining, Shards
from mlxd.engines.types import EngineConfig, LoadProgress


def load(config: EngineConfig, shards: Shards, watch: LoadWatch, stream: Any) -> ShardedRunner:
    """Start the ranks and load. Raises LoadError, and no rank is left then."""
    shards = resolved(shards)
    ranks = Ranks(config, shards, watch.others)
    try:
        return _load(config, shards, ranks, watch, stream)
    except BaseException:
        ranks.close()
        raise


def _load(config: EngineConfig, shards: Shards, ranks: Ranks, watch: LoadWatch, stream: Any) -> ShardedRunner:
    ranks.start()
    addresses = ranks.meet(watch.cancelled)
    watch.others(Joining(ranks.pids))
    try:
        group = join(shards, 0, addresses)
    finally:
        # the others may end from here on, told to or not
        watch.others(Joining({}))

    so_far = _SoFar(ranks, watch)
    cut = partial(split, shards=shards, group=group, path=config.path)
    loaded = load_text_model(config, so_far.own, so_far.cancelled, cut)
    here = loaded.info.weight_bytes + ranks.loaded(so_far.cancelled)
    loaded = LoadedText(AgreedModel(loaded.model, group), loaded.reading, replace(loaded.info, weight_bytes=here))
    meter = PeakMeter(watch.crowd)
    price = first_look(loaded, config, meter, lambda tokens: ranks.tell(orders.Look(tokens)))
    return ShardedRunner(loaded, config, Measures(stream, meter, price), shards, ranks)


class _SoFar:
    """What all ranks together have loaded; told whenever it is more."""

    def __init__(self, ranks: Ranks, watch: LoadWatch) -> None:
        self._ranks = ranks
        self._watch = watch
        self._own = LoadProgress(0, 0)
        self._told = LoadProgress(0, 0)

    def own(self, progress: LoadProgress) -> None:
        """Rank 0 has more."""
        self._own = progress
        self._tell()

    def cancelled(self) -> bool:
        """Whether the load was cancelled; asked again and again while others load."""
        self._tell()
        return self._watch.cancelled()

    def _tell(self) -> None:
        own, others = self._own, self._ranks.loading
        together = LoadProgress(own.bytes_done + others.bytes_done, own.bytes_total + others.bytes_total)
        if together != self._told:
            self._told = together
            self._watch.progress(together)
