"""A vision model whose rows cannot be batched: its requests take turns, each with the model for itself to its end.

Such models keep state of the last prompt in themselves, look ahead within a prompt, or attend to what is in no
sequence. So text has its turn like images have.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import mlx.core as mx

from mlxd.engines.backend import Admitted, NewRow, RunnerStep, TokenEvent
from mlxd.engines.cache_layers import CacheShape
from mlxd.engines.image_price import ImageNeed
from mlxd.engines.kept_prefixes import KeptPrefixes, PrefixLimits
from mlxd.engines.logprobs import token_logprobs
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.prompt_price import BatchNeed, RowNeed
from mlxd.engines.runner_base import Measures, RunnerBase, faults
from mlxd.engines.serial_vision_images import PromptEncoding, price_of_images
from mlxd.engines.serial_vision_look import SerialLook
from mlxd.engines.serial_vision_row import Drawn, SerialRow, serial_row
from mlxd.engines.serial_vision_sequence import NO_INPUTS, SerialSequence, forget
from mlxd.engines.types import EngineConfig
from mlxd.engines.vision_loader import LoadedVision
from mlxd.engines.vision_runner import STRETCH

# Tokens after which free buffers are given back.
CLEARED = 256


class SerialVisionRunner(RunnerBase):
    """Runs the row that came first; the others wait for its end. Nothing is kept of a row that is over."""

    def __init__(self, loaded: LoadedVision, config: EngineConfig, measures: Measures, look: SerialLook) -> None:
        super().__init__(loaded.text, config, measures, CacheShape(), None)
        self._vision = loaded.model
        self._encoder = loaded.encoder
        self._look = look
        self._rows: dict[int, SerialRow] = {}
        self._lasting = 0

    def _kept(self, limits: PrefixLimits, shape: CacheShape, disk: PrefixDisk | None) -> KeptPrefixes:
        return KeptPrefixes(replace(limits, max_bytes=0), shape, disk)

    @property
    def kv_bytes(self) -> int:
        return sum(row.nbytes for row in self._rows.values())

    @property
    def draft(self) -> None:
        return None

    @property
    def is_full(self) -> bool:
        return any(row.is_full for row in self._rows.values())

    def demand(self, more: RowNeed | None, chunk: int) -> int:
        """Bytes that the dearest row will take beyond what is held: they follow each other."""
        wanted = [self._alone(self._need(row), chunk, chunked=self._chunked(row)) for row in self._rows.values()]
        if more is not None:
            chunked = self._look.chunks_images if more.images.peak else self._look.chunks_text
            need = replace(more, images=self._with_text(more.images, more.prompt))
            wanted.append(self._alone(BatchNeed((need,)), chunk, chunked=chunked))
        return max(0, max(wanted, default=0) - self.kv_bytes)

    def insert(self, row: NewRow) -> Admitted:
        """Queue a row for its turn."""
        waiting = serial_row(next(self._uids), row, self._tokenizer, self._info.vocab_size)
        self._rows[waiting.uid] = waiting
        return Admitted(waiting.uid)

    def remove(self, uids: Iterable[int], *, keep: bool = True) -> None:  # noqa: ARG002
        """Drop rows, whatever they are at."""
        for uid in uids:
            row = self._rows.pop(uid, None)
            if row is not None:
                self._end(row)

    def settle(self) -> None:
        """Wait for the token that a removed row had begun; its memory goes with that."""
        mx.synchronize(self._stream)

    def step(self) -> RunnerStep:
        """The next part of the row that came first: a stretch of its images, a chunk of its prompt, or a token."""
        row = next(iter(self._rows.values()), None)
        if row is None:
            return RunnerStep()
        try:
            event = self._advance(row)
        # whatever it is, it is this row's alone: no other was at work
        except Exception as error:  # noqa: BLE001
            self.remove([row.uid])
            return RunnerStep(failed=((row.uid, error.with_traceback(None)),))
        failed = faults([row])
        if failed or (event is not None and event.is_last):
            self.remove([row.uid])
        return RunnerStep(() if event is None else (event,), failed)

    def rebuild(self) -> None:
        self.remove(list(self._rows))

    def close(self) -> None:
        self.rebuild()
        self._prefixes.close(0)
        del self._model, self._vision, self._encoder

    def _advance(self, row: SerialRow) -> TokenEvent | None:
        if row.sequence is None or not row.is_embedded:
            self._embed(row)
        elif row.drawn is not None:
            return self._take(row, row.drawn)
        elif row.sequence.left:
            self._process(row, row.sequence)
        else:
            self._follow(row, row.feed(mx.array([row.again.popleft()])))
        return None

    def _embed(self, row: SerialRow) -> None:
        """The images of a prompt for a while, or a prompt without any."""
        if row.sequence is None:
            inputs = NO_INPUTS if row.images is None else row.images.inputs
            row.sequence = SerialSequence(self._vision, row.prompt, inputs)
            self._lasting = 0
        if row.images is None:
            row.sequence.embed()
            return
        row.encoding = row.encoding or PromptEncoding(self._encoder, row.images.images[0], row.sequence)
        if row.encoding.go_on(STRETCH, patience=STRETCH) is None:
            return
        row.encoding = None
        seen = replace(self._encoder.price, token_bytes=self._price.images.token_bytes)
        images = price_of_images(seen, self._look.row_bytes, row.images.tokens, row.sequence)
        self._price = self._price.with_images(images)

    def _process(self, row: SerialRow, sequence: SerialSequence) -> None:
        """A chunk of a prompt, or all of it where it must not be in chunks."""
        before, held, started = sequence.length, sequence.cache_nbytes, time.perf_counter()
        chunk = self._bounded(self._pacer.chunk(1, decoding=False, depth=before), row.chunk)
        with self._meter.measured() as peak:
            logits = sequence.process(chunk)
        taken = sequence.length - before
        if taken > 1:
            self._pacer.observe(taken, time.perf_counter() - started, depth=before)
        if peak.nbytes is not None:
            grown = max(0, sequence.cache_nbytes - held)
            # a state may be a slice of what its step computed, all of which stays until the next step
            lasting, self._lasting = self._lasting, max(0, peak.kept - grown)
            self._observe_peak(1, taken, sequence.length, max(0, peak.nbytes - grown) + lasting)
        mx.clear_cache()
        if logits is not None:
            self._follow(row, logits)

    def _follow(self, row: SerialRow, logits: mx.array) -> None:
        """After these logits comes what was generated before, or a token that is drawn from them."""
        if row.again:
            mx.eval(logits)
        else:
            row.draw(logits)

    def _take(self, row: SerialRow, drawn: Drawn) -> TokenEvent:
        """The token that was drawn. The next one is begun before this one is waited for."""
        started = time.perf_counter()
        row.left -= 1
        if row.left:
            row.draw(row.feed(drawn.token))
        (token,) = cast(list[int], drawn.token.tolist())
        is_end = token in row.ends
        logprobs = None if row.logprobs is None else token_logprobs(drawn.logprobs[0], token, row.logprobs)
        self._pacer.observe_decode(time.perf_counter() - started)
        if row.left % CLEARED == 0:
            mx.clear_cache()
        return TokenEvent(row.uid, token, is_end=is_end, is_last=is_end or not row.left, logprobs=logprobs)

    def _end(self, row: SerialRow) -> None:
        """Free what a row holds, in the model too."""
        if row.encoding is not None:
            row.encoding.drop()
        if row.sequence is not None:
            forget(self._vision)
        row.sequence = row.encoding = row.drawn = None

    def _need(self, row: SerialRow) -> BatchNeed:
        images = self._price.images.of(row.images)
        return row.need(self._with_text(images, len(row.prompt)))

    def _with_text(self, images: ImageNeed, tokens: int) -> ImageNeed:
        """What a prompt of so many tokens holds until it is processed: it is embedded as a whole."""
        return replace(images, kept=images.kept + tokens * self._look.row_bytes)

    def _chunked(self, row: SerialRow) -> bool:
        if row.sequence is not None and row.is_embedded:
            return row.sequence.chunked
        return self._look.chunks_text if row.images is None else self._look.chunks_images

    def _alone(self, need: BatchNeed, chunk: int, *, chunked: bool) -> int:
        (row,) = need.rows
        return self._price.batches([need], chunk if chunked else max(chunk, row.prompt))
