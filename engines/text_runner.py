"""A text model and its rows, on mlx-lm's BatchGenerator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from mlxd.engines.backend import Admitted, RunnerStep, TextStream, TokenEvent
from mlxd.engines.cache_layers import cache_shape, detach
from mlxd.engines.grouping import choose_group
from mlxd.engines.pacer import PrefillPacer
from mlxd.engines.prefix_cache import PrefixCache, token_array, usable_length
from mlxd.engines.row_group import GroupStep, Row, RowGroup
from mlxd.engines.sampling import row_processors, row_sampler
from mlxd.engines.text_stream import StoppableText
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import EngineConfig, ModelInfo, Request


class TextRunner:
    """Runs a text model's rows; every call is made on the engine's lane, under its stream."""

    def __init__(self, model: Any, tokenizer: Tokenizer, info: ModelInfo, config: EngineConfig, stream: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._info = info
        self._config = config
        self._stream = stream
        self._pacer = PrefillPacer(config.prefill_chunk, config.max_stall)
        self._uids = count(1)
        self._groups: list[RowGroup] = []
        self._shape = cache_shape(model)
        self._headroom: Callable[[], int | None] = lambda: None
        self._prefixes = PrefixCache(config.prefix_cache_bytes)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def kv_bytes(self) -> int:
        return sum(group.nbytes for group in self._groups)

    @property
    def prefix_cache_bytes(self) -> int:
        return self._prefixes.nbytes

    def use_headroom(self, headroom: Callable[[], int | None]) -> None:
        self._headroom = headroom

    @property
    def short_prompt(self) -> int:
        return self._pacer.chunk(1, decoding=False)

    @property
    def prefix_changes(self) -> int:
        return self._prefixes.changes

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        return self._prefixes.match_length(prompt)

    def shared_tokens(self, prompt: Sequence[int], other: Sequence[int]) -> int:
        kept = len(other) * self._config.kv_bytes_per_token <= self._prefixes.max_bytes > 0
        trimmable = self._shape.is_trimmable(len(other) - 1)
        held, wanted = token_array(other[:-1]), token_array(prompt)
        return usable_length(held, wanted, trimmable=trimmable) if kept else 0

    def insert(self, request: Request, max_tokens: int) -> Admitted:
        """Queue a row in a batch; its arrays are made here, on the lane."""
        sampling, prompt = request.sampling, request.prompt
        options = {
            "samplers": [row_sampler(sampling, self._info.vocab_size)],
            "logits_processors": [row_processors(sampling, len(prompt))],
        }
        hit = self._prefixes.match(prompt)
        cached = hit.length if hit is not None else 0
        row = Row(
            next(self._uids),
            prompt,
            cached,
            length=len(prompt),
            logprobs=sampling.logprobs,
            keep_at=frozenset(self._shape.checkpoints(cached, len(prompt) - 1) if self._prefixes.max_bytes else ()),
        )
        self._group_for(len(prompt)).insert(row, hit.layers if hit is not None else None, max_tokens, **options)
        return Admitted(row.uid, cached)

    def text_stream(self, request: Request) -> TextStream:
        """A fresh text stream for one request."""
        primer = request.prompt[-1] if request.continues_text else None
        return StoppableText(self._tokenizer.detokenizer(), request.sampling.stop, primer)

    def remove(self, uids: Iterable[int], *, keep: bool = True) -> None:
        """Drop rows; with `keep` what they have processed stays in the prefix cache, within its bounds."""
        gone = list(uids)
        for group in self._groups:
            held = [uid for uid in gone if group.holds(uid)]
            for uid in held if keep and self._prefixes.max_bytes else ():
                self._keep(*group.extract(uid))
            group.remove(held)

    def settle(self) -> None:
        """Free the memory of removed rows now."""
        self._groups = [group for group in self._groups if len(group)]
        for group in self._groups:
            group.settle()

    def step(self) -> RunnerStep:
        self._groups = [group for group in self._groups if len(group)]
        prefilling = sum(group.prefilling for group in self._groups)
        chunk = self._pacer.chunk(prefilling, decoding=any(group.is_decoding for group in self._groups))
        steps = [group.step(chunk if group.prefilling else None) for group in self._groups]
        self._pacer.observe(sum(step.prompt_tokens for step in steps), sum(step.prompt_seconds for step in steps))
        for group, step in zip(self._groups, steps, strict=True):
            self._keep_reached(group, step)
        return RunnerStep(tokens=tuple(event for step in steps for event in self._events(step)))

    def rebuild(self) -> None:
        self._groups.clear()

    def trim_prefix_cache(self, max_bytes: int) -> int:
        return self._prefixes.trim(max_bytes)

    def close(self) -> None:
        self._groups.clear()
        self._prefixes.clear()
        del self._model

    def _events(self, step: GroupStep) -> Iterable[TokenEvent]:
        for row, response in step.tokens:
            if response.finish_reason is not None:
                self._keep(response.prompt_cache, response.all_tokens)
            yield TokenEvent(
                row.uid,
                response.token,
                is_end=response.finish_reason == "stop",
                is_last=response.finish_reason is not None,
            )

    def _keep_reached(self, group: RowGroup, step: GroupStep) -> None:
        for row, length in step.reached:
            if length == len(row.prompt) - 1 or length in row.keep_at:
                self._keep(*group.extract(row.uid))

    def _keep(self, layers: list[Any], tokens: Sequence[int]) -> None:
        """Put a sequence's cache into the prefix cache, unless memory is short."""
        nbytes = sum(layer.nbytes for layer in layers)
        spare = self._headroom()
        if spare is not None and nbytes > spare:
            return
        if self._prefixes.wants(tokens, nbytes):
            self._prefixes.put(tokens, detach(layers))

    def _group_for(self, length: int) -> RowGroup:
        index = choose_group([group.lengths for group in self._groups], length, self._most_padding())
        if index == len(self._groups):
            self._groups.append(self._new_group())
        return self._groups[index]

    def _most_padding(self) -> float:
        """Padding, in tokens, whose cache is as big as half of the weights."""
        per_token = self._config.kv_bytes_per_token
        return self._info.weight_bytes / 2 / per_token if per_token else float("inf")

    def _new_group(self) -> RowGroup:
        config = self._config
        return RowGroup(
            self._model, sorted(self._tokenizer.end_tokens), config.max_running, config.prefill_chunk, self._stream
        )
