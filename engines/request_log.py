"""What an engine logs of single requests, when each came and how it ended at the level debug."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from mlxd.engines.embedding_types import EmbeddingOutput, EmbeddingRequest
from mlxd.engines.step_result import Delivery
from mlxd.engines.types import Request

log = structlog.stdlib.get_logger(__name__)


def note_arrival(model: str, request: Request | EmbeddingRequest) -> None:
    """A request is in its engine."""
    tokens = request.prompt_tokens if isinstance(request, EmbeddingRequest) else len(request.prompt)
    log.debug("engine.request_arrived", model=model, prompt_tokens=tokens, **_names(request.id))


def note_ends(model: str, deliveries: Iterable[Delivery]) -> None:
    """Those of these requests that end with what they are given."""
    for request, item in deliveries:
        end: dict[str, object]
        if isinstance(item, Exception):
            end = {"error": type(item).__name__}
        elif isinstance(item, EmbeddingOutput):
            end = {"reason": "cancelled" if item.cancelled else "done"}
        elif item.finish_reason is None:
            continue
        else:
            reason = "cancelled" if item.cancelled else str(item.finish_reason)
            end = {"reason": reason, "completion_tokens": item.usage.completion_tokens}
        log.debug("engine.request_ended", model=model, **_names(request.id), **end)


def note_gone(model: str, request_id: str) -> None:
    """Nobody waits for it any more."""
    log.debug("engine.request_ended", model=model, reason="disconnected", **_names(request_id))


def note_preempted(model: str, sequence_id: str, tokens: int, running: int) -> None:
    """An answer gave way to older ones."""
    log.info("engine.preempted", model=model, tokens=tokens, running=running, **_names(sequence_id))


def _names(sequence_id: str) -> dict[str, str]:
    """The id that the caller knows, and which of its answers this is."""
    request_id, _, place = sequence_id.partition("#")
    return {"request_id": request_id, **({"answer": place} if place else {})}
