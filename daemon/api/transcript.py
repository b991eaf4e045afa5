"""Prompts and answers in the log, for operators who ask for them."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from mlxd.engines.types import RequestOutput

log = structlog.stdlib.get_logger(__name__)

# Characters of a prompt or an answer that a line has at most.
MOST = 100_000


class Transcript:
    """Of one request; without `wanted` it keeps and tells nothing."""

    def __init__(self, model: str, api: str, *, wanted: bool) -> None:
        self._names = {"model": model, "api": api}
        self._wanted = wanted
        self._answers: dict[int, list[str]] = {}

    def prompt(self, shown: Callable[[], str]) -> None:
        """The request has its model, and this is what it says."""
        if self._wanted:
            log.info("request.prompt", **self._names, prompt=_cut(shown()))

    def take(self, choice: int, output: RequestOutput) -> None:
        """What came of one of its answers; the last of it ends the answer."""
        if not self._wanted:
            return
        pieces = self._answers.setdefault(choice, [])
        pieces += [output.reasoning, output.text]
        pieces += [f"{call.name}({call.arguments})" for call in output.tool_calls]
        if output.finish_reason is not None:
            reason = str(output.finish_reason)
            log.info("request.answer", **self._names, choice=choice, reason=reason, answer=_cut("".join(pieces)))


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[:MOST]}… ({len(text) - MOST} characters more)"
