"""What a worker's engine has for the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mlxd.engines.embedding_types import EmbeddingOutput
from mlxd.engines.step_result import StepResult
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import RequestOutput, TokenLogprobs
from mlxd.engines.worker.error_forms import form_of
from mlxd.engines.worker.to_daemon import Item, Step


class Departures:
    """Used on the lane only."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._told: set[int] = set()

    def step(self, result: StepResult) -> Step:
        """A step's result as it crosses."""
        items = [self._item(request, item) for request, item in result.deliveries]
        dead = None if result.dead is None else form_of(result.dead)
        return Step(items, result.eviction, dead, result.freed)

    def _item(self, request: Any, item: RequestOutput | EmbeddingOutput | Exception) -> Item:
        match item:
            case RequestOutput():
                return Item(request.number, output=item, texts=dict(self._texts(item.logprobs)))
            case EmbeddingOutput():
                return Item(request.number, vectors=item)
            case _:
                return Item(request.number, error=form_of(item))

    def _texts(self, logprobs: Iterable[TokenLogprobs]) -> Iterator[tuple[int, bytes]]:
        """The bytes of tokens that the daemon has not seen yet."""
        for each in logprobs:
            for token in (each.token, *(token for token, _ in each.top)):
                if token not in self._told:
                    self._told.add(token)
                    yield token, self._tokenizer.token_bytes(token)
