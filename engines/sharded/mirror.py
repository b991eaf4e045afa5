"""Does with a rank's batches what rank 0 does with its own, and nothing else."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxd.engines.cache_layers import detach
from mlxd.engines.first_look import glance
from mlxd.engines.prefix_cache import cut_back
from mlxd.engines.row_group import UNBOUNDED, Row, RowGroup
from mlxd.engines.sharded import orders
from mlxd.engines.worker.frames import from_bytes


class Mirror:
    """The rows and kept caches of one rank. Used on one thread, under its stream.

    Rows never end by themselves here: rank 0 says so.
    """

    def __init__(self, model: Any, vocab_size: int, chunk: int, stream: Any) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._chunk = chunk
        self._stream = stream
        self._groups: dict[int, RowGroup] = {}
        self._kept: dict[int, list[Any]] = {}
        self._ended: dict[int, list[Any]] = {}

    def follow(self, order: orders.Order) -> None:  # noqa: C901 - one branch for each order
        """Do what rank 0 is about to do. Whatever it raises, this rank cannot go on."""
        match order:
            case orders.Step(number, chunk):
                self._groups[number].step(chunk)
            case orders.Ended(number, uids):
                self._end(number, uids)
            case orders.Insert():
                self._insert(order)
            case orders.Keep(uid, key):
                self._kept[key] = detach(self._cache_of(uid))
            case orders.Forget(key):
                del self._kept[key]
            case orders.Let():
                self._ended.clear()
            case orders.Remove(number, uids):
                self._remove(number, uids)
            case orders.Settle(number):
                if number in self._groups:
                    self._groups[number].settle()
            case orders.Look(tokens):
                glance(self._model, tokens, self._vocab_size)
                mx.clear_cache()

    def _insert(self, order: orders.Insert) -> None:
        prompt = tuple(from_bytes(order.prompt))
        row = Row(
            order.uid,
            prompt,
            order.cached,
            length=len(prompt),
            left=UNBOUNDED,
            chunk=UNBOUNDED,
            done=order.cached,
        )
        layers = None if order.prefix is None else cut_back(self._kept[order.prefix], order.cut)
        if order.group not in self._groups:
            self._groups[order.group] = RowGroup(self._model, [], self._chunk, self._stream)
        self._groups[order.group].insert(row, layers, order.cuts)

    def _end(self, number: int, uids: list[int]) -> None:
        for uid in uids:
            self._ended[uid] = self._groups[number].extract(uid)[0]
        self._remove(number, uids)

    def _remove(self, number: int, uids: list[int]) -> None:
        group = self._groups.get(number)
        if group is None:
            return
        group.remove(uids)
        if not len(group):
            del self._groups[number]

    def _cache_of(self, uid: int) -> list[Any]:
        """What a row has processed; its last step may have ended it."""
        ended = self._ended.pop(uid, None)
        if ended is not None:
            return ended
        group = next(group for group in self._groups.values() if group.holds(uid))
        return group.extract(uid)[0]
