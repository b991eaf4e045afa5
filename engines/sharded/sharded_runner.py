"""Rank 0's runner: a text runner that tells the other ranks what it is about to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import msgspec

from mlxd.engines.backend import RunnerStep
from mlxd.engines.cache_layers import CacheShape
from mlxd.engines.kept_prefixes import KeptPrefixes, PrefixLimits
from mlxd.engines.loader import LoadedText
from mlxd.engines.memory_share import Stake
from mlxd.engines.prefix_cache import PrefixCache, PrefixEntry, PrefixHit
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.row_group import GroupStep, Row, RowGroup
from mlxd.engines.runner_base import Measures
from mlxd.engines.sharded import orders
from mlxd.engines.sharded.group_stake import GroupStake
from mlxd.engines.sharded.ranks import Ranks
from mlxd.engines.shards import Shards
from mlxd.engines.text_runner import TextRunner
from mlxd.engines.token_arrays import Prompt
from mlxd.engines.types import EngineConfig
from mlxd.engines.worker.frames import to_bytes

Tell = Callable[[msgspec.Struct], None]


class LedPrefixCache(PrefixCache):
    """Tells of each entry that comes and goes; `keeping` is the row whose cache is looked at, `lent` the last hit."""

    def __init__(self, max_bytes: int, tell: Tell) -> None:
        super().__init__(max_bytes)
        self.keeping = 0
        self.lent: PrefixHit | None = None
        self._tell = tell

    def match(self, prompt: Prompt) -> PrefixHit | None:
        self.lent = super().match(prompt)
        return self.lent

    def _add(self, entry: PrefixEntry) -> None:
        self._tell(orders.Keep(self.keeping, self._next_key))
        super()._add(entry)

    def _drop(self, key: int) -> PrefixEntry:
        self._tell(orders.Forget(key))
        return super()._drop(key)


class LedPrefixes(KeptPrefixes):
    """Bytes are those of all ranks of this machine, `ranks` of them."""

    def __init__(self, limits: PrefixLimits, shape: CacheShape, cache: LedPrefixCache, ranks: int) -> None:
        super().__init__(limits, shape, cache=cache)
        self._ranks = ranks

    @property
    def nbytes(self) -> int:
        return super().nbytes * self._ranks

    def trim(self, max_bytes: int, sparing: Prompt = ()) -> int:
        return super().trim(max_bytes // self._ranks, sparing) * self._ranks


class LedGroup(RowGroup):
    """A batch that the other ranks have too, as `number`."""

    def __init__(self, number: int, tell: Tell, lent: Callable[[], PrefixHit | None], *batch: Any) -> None:
        super().__init__(*batch)
        self._number = number
        self._tell = tell
        self._lent = lent

    def insert(self, row: Row, layers: list[Any] | None, cuts: Sequence[int] = (), **options: Any) -> None:
        hit = self._lent() if layers is not None else None
        prefix, cut = (None, 0) if hit is None else (hit.key, hit.cut)
        # first what may be refused: the others have to be told of what is there, and of nothing else
        super().insert(row, layers, cuts, **options)
        self._tell(
            orders.Insert(self._number, row.uid, to_bytes(row.prompt), row.cached, list(cuts), prefix=prefix, cut=cut)
        )

    def remove(self, uids: Iterable[int]) -> None:
        held = [uid for uid in uids if self.holds(uid)]
        if held:
            self._tell(orders.Remove(self._number, held))
        super().remove(held)

    def settle(self) -> None:
        self._tell(orders.Settle(self._number))
        super().settle()

    def step(self, chunk: int | None) -> GroupStep:
        # without rows it does nothing, and the others may have dropped it
        if len(self):
            self._tell(orders.Step(self._number, chunk))
        step = super().step(chunk)
        ended = [row.uid for row, response in step.tokens if response.finish_reason is not None]
        if ended:
            self._tell(orders.Ended(self._number, ended))
        return step


class ShardedRunner(TextRunner):
    """Rank 0 of a model. What it holds counts for every rank of this machine."""

    def __init__(
        self, loaded: LoadedText, config: EngineConfig, measures: Measures, shards: Shards, ranks: Ranks
    ) -> None:
        self._shards = shards
        self._ranks = ranks
        self._numbers = count(1)
        self._led = LedPrefixCache(config.prefix_cache_bytes // shards.here, ranks.tell)
        super().__init__(loaded, config, measures)

    def _kept(self, limits: PrefixLimits, shape: CacheShape, disk: PrefixDisk | None) -> KeptPrefixes:  # noqa: ARG002
        own = PrefixLimits(limits.max_bytes // self._shards.here, limits.token_bytes // self._shards.here)
        return LedPrefixes(own, shape, self._led, self._shards.here)

    def _new_group(self) -> RowGroup:
        ends, chunk = sorted(self._tokenizer.end_tokens), self._config.prefill_chunk
        return LedGroup(
            next(self._numbers), self._ranks.tell, lambda: self._led.lent, self._model, ends, chunk, self._stream
        )

    def _keep(self, row: Row, layers: list[Any], tokens: Sequence[int]) -> None:
        self._led.keeping = row.uid
        super()._keep(row, layers, tokens)

    def keep_finished(self) -> None:
        super().keep_finished()
        self._ranks.tell(orders.Let())

    @property
    def kv_bytes(self) -> int:
        return super().kv_bytes * self._shards.here

    def share(self, stake: Stake) -> Stake:
        return GroupStake(stake, self._shards.here, lambda: self._ranks.rooms)

    def step(self) -> RunnerStep:
        try:
            return super().step()
        except Exception:
            self._ranks.explain()
            raise

    def close(self) -> None:
        self._ranks.close()
        super().close()
