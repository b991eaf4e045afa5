"""What goes wrong in one row's sampler or processors is kept aside, so that a batch's step goes on without it."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


class RowFault:
    """One row's first error, None while all is well. Once there is one the row is to be removed.

    BatchGenerator calls samplers and processors inside its step, which is every row's. A guarded processor that
    raises leaves the logits as they are, and from then on does nothing; a guarded sampler takes the likeliest token.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def processor(self, processor: LogitsProcessor) -> LogitsProcessor:
        """`processor`, guarded."""

        def process(tokens: mx.array, logits: mx.array) -> mx.array:
            if self.error is not None:
                return logits
            try:
                return processor(tokens, mx.array(logits))
            # whatever it is, it is this row's alone
            except Exception as error:  # noqa: BLE001
                self._note(error)
                return logits

        return process

    def sampler(self, sampler: Sampler) -> Sampler:
        """`sampler`, guarded. Not for one that rows share: the batch calls those once for all."""

        def sample(logprobs: mx.array) -> mx.array:
            try:
                return sampler(logprobs)
            # whatever it is, it is this row's alone
            except Exception as error:  # noqa: BLE001
                self._note(error)
                return mx.argmax(logprobs, axis=-1)

        return sample

    def _note(self, error: Exception) -> None:
        if self.error is None:
            # frames of a failed call hold the batch's arrays
            self.error = error.with_traceback(None)
