"""Writes one choice of a text completion."""

from __future__ import annotations

from mlxd.daemon.api.openai.logprobs import TextLogprobsWriter, TokenBytes
from mlxd.daemon.api.openai.objects import TextChoice, TextLogprobs
from mlxd.engines.types import RequestOutput


class TextWriter:
    """One choice, which begins with `echo`. Use either `whole`, or `opening` and then `steps` for each output."""

    def __init__(self, index: int, token_bytes: TokenBytes, *, logprobs: bool, echo: str = "") -> None:
        self._index = index
        self._logprobs = TextLogprobsWriter(token_bytes) if logprobs else None
        self._echo = echo

    def opening(self) -> list[TextChoice]:
        """What a stream starts with."""
        return [TextChoice(self._index, self._echo)] if self._echo else []

    def steps(self, output: RequestOutput) -> list[TextChoice]:
        """The next steps of a stream; those of the last output end with the finish reason."""
        logprobs = self._written(output) if output.logprobs else None
        if output.finish_reason is None:
            return [TextChoice(self._index, output.text, logprobs)] if output.text or logprobs is not None else []
        steps = [TextChoice(self._index, output.text, logprobs)] if output.text else []
        rest = None if steps else logprobs
        return [*steps, TextChoice(self._index, "", rest, str(output.finish_reason))]

    def whole(self, output: RequestOutput) -> TextChoice:
        """The choice in one piece."""
        return TextChoice(self._index, self._echo + output.text, self._written(output), str(output.finish_reason))

    def _written(self, output: RequestOutput) -> TextLogprobs | None:
        return None if self._logprobs is None else self._logprobs.write(output.logprobs)
