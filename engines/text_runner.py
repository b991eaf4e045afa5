"""A text model and its rows, on mlx-lm's BatchGenerator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mlxd.engines.backend import Admitted, NewRow, RunnerStep, TokenEvent
from mlxd.engines.cache_layers import cache_shape, check_batchable
from mlxd.engines.grouping import choose_group
from mlxd.engines.loader import LoadedText
from mlxd.engines.logprobs import batch_logprobs
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.prompt_price import BatchNeed, RowNeed
from mlxd.engines.row_faults import RowFault
from mlxd.engines.row_group import GroupStep, Row, RowGroup
from mlxd.engines.runner_base import Measures, RunnerBase, faults
from mlxd.engines.sampling import row_options
from mlxd.engines.token_arrays import image_boundary, token_array
from mlxd.engines.types import EngineConfig, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Joining:
    """A row on its way into a batch: kept `layers` of its first tokens, places at which its cache is to be kept, and
    BatchGenerator's options.
    """

    row: Row
    layers: list[Any] | None
    cuts: Sequence[int]
    options: dict[str, list[Any]]


class TextRunner(RunnerBase):
    """Runs a text model's rows in padded batches. Raises LoadError for a model that cannot be batched."""

    def __init__(
        self, loaded: LoadedText, config: EngineConfig, measures: Measures, disk: PrefixDisk | None = None
    ) -> None:
        check_batchable(loaded.model)
        super().__init__(loaded, config, measures, cache_shape(loaded.model), disk)
        self._groups: list[RowGroup] = []
        self._lasting = 0
        self._finished: list[tuple[Row, Any]] = []

    @property
    def kv_bytes(self) -> int:
        return self._cache_bytes

    @property
    def _cache_bytes(self) -> int:
        """What the batches hold of what their price counts."""
        return sum(group.nbytes for group in self._groups)

    @property
    def draft(self) -> None:
        return None

    @property
    def is_full(self) -> bool:
        """Whether the next step needs longer buffers in some batch."""
        return any(group.is_full for group in self._groups)

    def demand(self, more: RowNeed | None, chunk: int) -> int:
        """Bytes that the batches will take beyond what they hold, with one more row where it would join."""
        return self._beyond_held([] if more is None else [more], chunk)

    def _beyond_held(self, more: Sequence[RowNeed], chunk: int) -> int:
        joining: dict[int, list[RowNeed]] = {}
        for row in more:
            index = choose_group([group.lengths for group in self._groups], row.prompt, self._most_padding())
            joining.setdefault(index, []).append(row)
        needs = [group.need(*joining.pop(index, ())) for index, group in enumerate(self._groups)]
        needs += [BatchNeed(rows) for rows in joining.values()]
        return max(0, self._price.batches(needs, chunk) - self._cache_bytes)

    def insert(self, row: NewRow) -> Admitted:
        """Queue a row in a batch; its arrays are made here, on the lane."""
        joining = self._prepared(row)
        self._join(joining)
        return Admitted(joining.row.uid, joining.row.cached)

    def _prepared(self, new: NewRow) -> Joining:
        request, prompt = new.request, new.tokens
        fault = RowFault()
        options = row_options(request, self._tokenizer, self._info.vocab_size, fault, new.drawn)
        keys = new.keys
        hit = self._prefixes.match(keys)
        cached = hit.length if hit is not None else 0
        row = Row(
            next(self._uids),
            prompt,
            cached,
            length=len(prompt),
            left=new.left,
            chunk=new.chunk,
            done=cached,
            logprobs=request.sampling.logprobs,
            fault=fault,
            images=request.images,
        )
        # what is kept up to the middle of an image serves nobody
        cuts = [cut for cut in self._prefixes.checkpoints(cached, prompt) if image_boundary(keys, cut) == cut]
        return Joining(row, hit.layers if hit is not None else None, cuts, options)

    def _join(self, joining: Joining) -> None:
        row = joining.row
        self._group_for(len(row.prompt)).insert(row, joining.layers, joining.cuts, **joining.options)

    def _keep(self, row: Row, layers: list[Any], tokens: Sequence[int]) -> None:
        """Keep a row's cache of these tokens in the prefix cache."""
        self._prefixes.keep(layers, tokens if row.images is None else row.images.keyed(token_array(tokens)))

    def remove(self, uids: Iterable[int], *, keep: bool = True) -> None:
        """Drop rows; with `keep` what they have processed stays in the prefix cache, within its bounds."""
        gone = list(uids)
        for group in self._groups:
            held = [uid for uid in gone if group.holds(uid)]
            for uid in held if keep and self._prefixes.active else ():
                self._keep(group.row(uid), *group.extract(uid))
            group.remove(held)

    def settle(self) -> None:
        """Free the memory of removed rows now."""
        self._groups = [group for group in self._groups if len(group)]
        for group in self._groups:
            group.settle()

    def step(self) -> RunnerStep:
        prefilling = sum(group.prefilling for group in self._groups)
        steps = self._paced_steps(prefilling) if prefilling else [group.step(None) for group in self._groups]
        failed = faults(row for group in self._groups for row in group.rows)
        if failed:
            self.remove([uid for uid, _ in failed], keep=False)
        self._groups = [group for group in self._groups if len(group)]
        return RunnerStep(tokens=tuple(event for step in steps for event in self._events(step)), failed=failed)

    @property
    def has_finished(self) -> bool:
        return bool(self._finished)

    def keep_finished(self) -> None:
        finished, self._finished = self._finished, []
        for row, response in finished:
            self._keep(row, response.prompt_cache, response.all_tokens)

    def rebuild(self) -> None:
        self._groups.clear()
        self._finished.clear()

    def close(self) -> None:
        self._groups.clear()
        self._finished.clear()
        self._prefixes.close(self._config.prefix_spill_timeout)
        del self._model

    def _events(self, step: GroupStep) -> Iterable[TokenEvent]:
        by_uid = self._logprobs(step) if any(row.logprobs is not None for row, _ in step.tokens) else {}
        for row, response in step.tokens:
            if response.finish_reason is not None:
                self._finished.append((row, response))
            yield TokenEvent(
                row.uid,
                response.token,
                is_end=response.finish_reason == "stop",
                is_last=response.finish_reason is not None,
                logprobs=by_uid.get(row.uid),
            )

    @staticmethod
    def _logprobs(step: GroupStep) -> dict[int, TokenLogprobs]:
        """Of the rows that want them."""
        wanted = [(row, response) for row, response in step.tokens if row.logprobs is not None]
        logprobs = batch_logprobs(
            [response.logprobs for _, response in wanted],
            [response.token for _, response in wanted],
            [row.logprobs or 0 for row, _ in wanted],
        )
        return {row.uid: one for (row, _), one in zip(wanted, logprobs, strict=True)}

    def _paced_steps(self, prefilling: int) -> list[GroupStep]:
        """A step of each group in which prompts prefill too: their chunk is sized, and its speed measured."""
        depth = max(group.depth for group in self._groups)
        decoding = any(group.is_decoding for group in self._groups)
        chunk = self._pacer.chunk(prefilling, decoding=decoding, depth=depth)
        steps = [self._measured_step(group, chunk) if group.prefilling else group.step(None) for group in self._groups]
        self._pacer.observe_decode(sum(step.decode_seconds for step in steps))
        tokens, seconds = sum(step.prompt_tokens for step in steps), sum(step.prompt_seconds for step in steps)
        self._pacer.observe(tokens, seconds, rows=prefilling, depth=depth)
        for group, step in zip(self._groups, steps, strict=True):
            for row in step.reached:
                self._keep(row, *group.extract(row.uid))
        return steps

    def _measured_step(self, group: RowGroup, chunk: int) -> GroupStep:
        rows, depth, held = group.prefilling, group.depth, group.nbytes
        begins = not group.has_begun
        with self._meter.measured() as peak:
            step = group.step(self._bounded(chunk, group.chunk))
        if peak.nbytes is not None and not step.joined:
            taken = -(-step.prompt_tokens // rows)
            grown = max(0, group.nbytes - held)
            # a state may be a slice of what its step computed, all of which stays until the next step
            before = 0 if begins else self._lasting
            self._lasting = max(0, peak.kept - grown)
            self._observe_peak(rows, taken, depth + taken, max(0, peak.nbytes - grown) + before)
        return step

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
        return RowGroup(self._model, sorted(self._tokenizer.end_tokens), self._config.prefill_chunk, self._stream)
