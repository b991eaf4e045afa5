"""Prompts of one padded batch that are processed chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.generate import PromptProcessingBatch


class PromptBatch(PromptProcessingBatch):  # type: ignore[misc]
    """PromptProcessingBatch that leaves freed buffers to the limit of MLX's cache.

    To empty the cache after each chunk holds the GIL for as long as the kernel takes to unmap them: up to 0.3 s while
    another engine's threads map memory of their own, in which no request is answered and no other engine steps.
    """

    def prompt(self, tokens: Sequence[Sequence[int]]) -> None:
        """Process the next tokens of each prompt: one chunk, which its caller has cut. Raises ValueError for other
        numbers of prompts and rows.
        """
        for seen, more in zip(self.tokens, tokens, strict=True):
            seen.extend(more)
        longest = max((len(more) for more in tokens), default=0)
        if not longest:
            return
        missing = [longest - len(more) for more in tokens]
        if any(missing):
            for layer in self.prompt_cache:
                layer.prepare(lengths=[len(more) for more in tokens], right_padding=missing)
        padded = [[*more, *[0] * short] for more, short in zip(tokens, missing, strict=True)]
        self.model(mx.array(padded), cache=self.prompt_cache)
        self._evaluate()
        if any(missing):
            for layer in self.prompt_cache:
                layer.finalize()
            self._evaluate()

    def _evaluate(self) -> None:
        mx.eval([layer.state for layer in self.prompt_cache])
