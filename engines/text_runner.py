"""A text model and its batch, on mlx-lm's BatchGenerator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlx_lm.generate import BatchGenerator

from mlxd.engines.backend import RunnerStep, TokenEvent
from mlxd.engines.pacer import PrefillPacer
from mlxd.engines.sampling import row_processors, row_sampler
from mlxd.engines.text_stream import StoppableText
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import EngineConfig, ModelInfo, Request


class _Generator(BatchGenerator):  # type: ignore[misc]
    """BatchGenerator without its hand on the wired limit, and with prefill chunks that may change between steps.

    The limit is process-wide: restoring an old value when one engine closes would take it from the others.
    """

    def close(self) -> None:
        self._old_wired_limit = None

    @property
    def is_decoding(self) -> bool:
        return len(self._generation_batch) > 0

    def pace(self, chunk: int) -> None:
        """Take at most `chunk` tokens of each prompt in the next step."""
        self.prefill_step_size = self._prompt_batch.prefill_step_size = chunk


class TextRunner:
    """Runs a text model's batch; every call is made on the engine's lane, under its stream."""

    def __init__(self, model: Any, tokenizer: Tokenizer, info: ModelInfo, config: EngineConfig, stream: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._info = info
        self._config = config
        self._stream = stream
        self._pacer = PrefillPacer(config.prefill_chunk, config.max_stall)
        self._prefilling: set[int] = set()
        self._batch = self._new_batch()

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def kv_bytes(self) -> int:
        return int(self._batch.prompt_cache_nbytes)

    def insert(self, request: Request, max_tokens: int) -> int:
        """Queue a row in the batch; its arrays are made here, on the lane."""
        sampling = request.sampling
        (uid,) = self._batch.insert(
            [list(request.prompt)],
            max_tokens=[max_tokens],
            samplers=[row_sampler(sampling, self._info.vocab_size)],
            logits_processors=[row_processors(sampling, len(request.prompt))],
        )
        self._prefilling.add(uid)
        return int(uid)

    def text_stream(self, request: Request) -> StoppableText:
        """A fresh text stream for one request."""
        primer = request.prompt[-1] if request.continues_text else None
        return StoppableText(self._tokenizer.detokenizer(), request.sampling.stop, primer)

    def remove(self, uids: Iterable[int]) -> None:
        gone = list(uids)
        self._prefilling.difference_update(gone)
        self._batch.remove(gone)

    def step(self) -> RunnerStep:
        tokens = self._paced_step() if self._prefilling else self._batch.next()[1]
        return RunnerStep(
            tokens=tuple(
                TokenEvent(
                    response.uid,
                    response.token,
                    is_end=response.finish_reason == "stop",
                    is_last=response.finish_reason is not None,
                )
                for response in tokens
            ),
        )

    def rebuild(self) -> None:
        self._prefilling.clear()
        self._batch = self._new_batch()

    def _paced_step(self) -> list[Any]:
        """A step in which prompts prefill too: its chunk is sized, and its speed measured."""
        batch = self._batch
        rows = min(len(self._prefilling), self._config.prefill_batch)
        batch.pace(self._pacer.chunk(rows, decoding=batch.is_decoding))
        with batch.stats() as stats:
            prompts, tokens = batch.next()
        self._pacer.observe(stats.prompt_tokens, stats.prompt_time)
        self._prefilling.difference_update(response.uid for response in prompts if response.end_of_prompt)
        return list(tokens)

    def close(self) -> None:
        del self._batch, self._model

    def _new_batch(self) -> _Generator:
        config = self._config
        return _Generator(
            self._model,
            stop_tokens=[[token] for token in sorted(self._tokenizer.end_tokens)],
            completion_batch_size=config.max_running,
            prefill_batch_size=min(config.prefill_batch, config.max_running),
            prefill_step_size=config.prefill_chunk,
            stream=self._stream,
        )
