"""Outputs of one request that come faster than they are read, in as few as their order allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mlxd.engines.types import RequestOutput


def merged(outputs: Iterable[RequestOutput]) -> Iterator[RequestOutput]:
    """Successive outputs of one request, joined where reasoning, text and calls stay in their order."""
    run: list[RequestOutput] = []
    has_text = has_calls = False
    for output in outputs:
        if run and ((has_calls and (output.text or output.reasoning)) or (has_text and output.reasoning)):
            yield _one(run)
            run, has_text, has_calls = [], False, False
        run.append(output)
        has_text = has_text or bool(output.text)
        has_calls = has_calls or bool(output.tool_calls)
    if run:
        yield _one(run)


def _one(run: list[RequestOutput]) -> RequestOutput:
    return run[0] if len(run) == 1 else RequestOutput.joined(run)
