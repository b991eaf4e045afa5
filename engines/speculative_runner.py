"""A text model that is helped by a smaller one: the draft proposes tokens, the model checks several at once.

mlx-lm's speculative decoding works on one sequence. Rows are therefore not batched: each step gives every decoding
row one round (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023), then one prompt
one chunk. Greedy answers are those of the model alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache

from mlxd.engines.backend import Admitted, NewRow, RunnerStep, TokenEvent
from mlxd.engines.cache_layers import CacheShape, cache_shape
from mlxd.engines.cache_sizes import slots_of
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.loader import LoadedText
from mlxd.engines.logprobs import token_logprobs
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.prompt_price import BatchNeed, RowNeed
from mlxd.engines.row_faults import LogitsProcessor, RowFault, Sampler
from mlxd.engines.runner_base import Measures, RunnerBase, faults
from mlxd.engines.sampling import row_options
from mlxd.engines.types import DraftStats, EngineConfig


@dataclass(slots=True, eq=False)
class SpeculativeRow:
    """One sequence with a cache in each model; `done` tokens of the prompt are in both."""

    uid: int
    prompt: tuple[int, ...]
    layers: list[Any]
    draft_layers: list[Any]
    done: int
    max_tokens: int
    sampler: Sampler
    processors: list[LogitsProcessor]
    ends: frozenset[int]
    logprobs: int | None
    fault: RowFault
    chunk: int
    tokens: Iterator[tuple[int, Any, bool]] | None = None
    made: int = 0

    @property
    def length(self) -> int:
        """Tokens in the caches, the drafted ones of a round aside."""
        return self.done if self.tokens is None else len(self.prompt) + self.made

    @property
    def slots(self) -> int:
        return slots_of(self.layers)

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in (*self.layers, *self.draft_layers))

    @property
    def need(self) -> RowNeed:
        """This row as a price sees it."""
        return RowNeed(max(len(self.prompt), self.length), self.max_tokens - self.made, self.length, self.slots)

    @property
    def unprocessed(self) -> int:
        """Tokens of the prompt that are still to be processed before the first round."""
        return len(self.prompt) - 1 - self.done


class SpeculativeRunner(RunnerBase):
    """Runs a model with its draft. Raises LoadError for models that cannot go back."""

    def __init__(
        self, loaded: LoadedText, config: EngineConfig, measures: Measures, disk: PrefixDisk | None = None
    ) -> None:
        shapes = {name: _shape(name, one) for name, one in (("model", loaded.model), ("draft", loaded.draft))}
        super().__init__(loaded, config, measures, shapes["model"], disk)
        self._draft = loaded.draft
        self._rows: dict[int, SpeculativeRow] = {}
        self._proposed = 0
        self._accepted = 0

    @property
    def kv_bytes(self) -> int:
        return sum(row.nbytes for row in self._rows.values())

    @property
    def draft(self) -> DraftStats:
        return DraftStats(self._proposed, self._accepted)

    @property
    def is_full(self) -> bool:
        """A round may take several tokens, so buffers count as full a little early."""
        decoding = [row for row in self._rows.values() if row.tokens is not None]
        return any(row.slots - row.length <= self._config.draft_tokens + 1 for row in decoding)

    def demand(self, more: RowNeed | None, chunk: int) -> int:
        """Bytes that the rows will take beyond what they hold, with one more: each has caches of its own."""
        rows = [*(row.need for row in self._rows.values()), *([more] if more is not None else [])]
        return max(0, self._price.batches([BatchNeed((row,)) for row in rows], chunk) - self.kv_bytes)

    def insert(self, new: NewRow) -> Admitted:
        """Add a row with a cache in each model."""
        request, prompt, fault = new.request, new.tokens, RowFault()
        sampling = request.sampling
        options = row_options(request, self._tokenizer, self._info.vocab_size, fault, new.drawn)
        hit = self._prefixes.match(prompt)
        layers = hit.layers if hit is not None else [*make_prompt_cache(self._model), *make_prompt_cache(self._draft)]
        own = len(self._model.layers)
        cached = hit.length if hit is not None else 0
        row = SpeculativeRow(
            uid=next(self._uids),
            prompt=prompt,
            layers=layers[:own],
            draft_layers=layers[own:],
            done=cached,
            max_tokens=new.left,
            chunk=new.chunk,
            sampler=options["samplers"][0],
            processors=_with_prompt(options["logits_processors"][0], prompt[:-1]),
            ends=frozenset() if sampling.ignore_eos else self._tokenizer.end_tokens,
            logprobs=sampling.logprobs,
            fault=fault,
        )
        self._rows[row.uid] = row
        return Admitted(row.uid, cached)

    def remove(self, uids: Iterable[int], *, keep: bool = True) -> None:
        """Drop rows; with `keep` a prompt that was not finished stays in the prefix cache, as far as it came."""
        for uid in uids:
            row = self._rows.pop(uid, None)
            if row is not None and keep and row.tokens is None:
                self._keep(row)

    def settle(self) -> None:
        """A row's memory goes with its last reference."""

    def step(self) -> RunnerStep:
        """One round for each decoding row, then one chunk of the prompt that came first."""
        decoding = [row for row in self._rows.values() if row.tokens is not None]
        started = time.perf_counter()
        events = [event for row in decoding for event in self._round(row)]
        self._pacer.observe_decode(time.perf_counter() - started)
        prefilling = next((row for row in self._rows.values() if row.tokens is None), None)
        if prefilling is not None:
            self._prefill(prefilling, self._pacer.chunk(1, decoding=bool(decoding), depth=prefilling.done))
        failed = faults(self._rows.values())
        self.remove([uid for uid, _ in failed], keep=False)
        return RunnerStep(tokens=tuple(events), failed=failed)

    def rebuild(self) -> None:
        self._rows.clear()

    def close(self) -> None:
        self._rows.clear()
        self._prefixes.close(self._config.prefix_spill_timeout)
        del self._model, self._draft

    def _prefill(self, row: SpeculativeRow, chunk: int) -> None:
        size = min(self._bounded(chunk, row.chunk), row.unprocessed)
        if size:
            started, held = time.perf_counter(), row.nbytes
            tokens = mx.array([row.prompt[row.done : row.done + size]])
            with self._meter.measured() as peak:
                for model, layers in ((self._model, row.layers), (self._draft, row.draft_layers)):
                    model(tokens, cache=layers)
                    mx.eval([layer.state for layer in layers])
            self._pacer.observe(size, time.perf_counter() - started, depth=row.done)
            row.done += size
            if peak.nbytes is not None:
                self._observe_peak(1, size, row.done, max(0, peak.nbytes - (row.nbytes - held)))
        if row.unprocessed == 0:
            self._keep(row)
            row.tokens = self._start(row)

    def _start(self, row: SpeculativeRow) -> Iterator[tuple[int, Any, bool]]:
        tokens: Iterator[tuple[int, Any, bool]] = speculative_generate_step(
            mx.array(row.prompt[-1:]),
            self._model,
            self._draft,
            self._stream,
            num_draft_tokens=self._config.draft_tokens,
            max_tokens=row.max_tokens,
            sampler=row.sampler,
            logits_processors=row.processors or None,
            prompt_cache=[*row.layers, *row.draft_layers],
        )
        return tokens

    def _round(self, row: SpeculativeRow) -> Iterator[TokenEvent]:
        """The draft tokens that the model agrees with, and the one that it adds itself."""
        assert row.tokens is not None, "only decoding rows have rounds"
        self._proposed += min(row.max_tokens - row.made, self._config.draft_tokens)
        for token, row_logprobs, from_draft in row.tokens:
            row.made += 1
            self._accepted += from_draft
            is_end = token in row.ends
            is_last = is_end or row.made == row.max_tokens
            logprobs = token_logprobs(row_logprobs, token, row.logprobs) if row.logprobs is not None else None
            yield TokenEvent(row.uid, token, is_end=is_end, is_last=is_last, logprobs=logprobs)
            if is_last:
                del self._rows[row.uid]
            if is_last or not from_draft:
                return

    def _keep(self, row: SpeculativeRow) -> None:
        # the row goes on with its own objects
        self._prefixes.keep(copy.deepcopy([*row.layers, *row.draft_layers]), row.prompt[: row.done])


def _shape(name: str, model: Any) -> CacheShape:
    """The shape of a cache that can be cut back and that mlx-lm can tell from the other model's. Raises LoadError."""
    shape = cache_shape(model)
    # mlx-lm tells the two models' caches apart by the number of layers
    if shape.recurrent or shape.window is not None or len(make_prompt_cache(model)) != len(model.layers):
        message = f"engine.draft: the {name}'s cache cannot be cut back, which speculative decoding needs"
        raise LoadError(LoadFailure.UNSUPPORTED, message)
    return shape


def _with_prompt(processors: list[LogitsProcessor], prompt: Sequence[int]) -> list[LogitsProcessor]:
    """Processors that see the whole prompt, of which speculative decoding only knows the last token."""
    if not processors:
        return processors
    before = mx.array(list(prompt), dtype=mx.int32)

    def seeing(processor: LogitsProcessor) -> LogitsProcessor:
        return lambda tokens, logits: processor(mx.concatenate([before, tokens.astype(mx.int32)]), logits)

    return [seeing(processor) for processor in processors]
