"""Requests as they come to a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlxd.engines.embedding_types import EmbeddingRequest, EncoderInput
from mlxd.engines.types import ChatFormat, Request, SamplingParams
from mlxd.engines.worker.frames import from_bytes, from_json
from mlxd.engines.worker.held import Held
from mlxd.engines.worker.to_worker import AddInputs, AddText


@dataclass(frozen=True, slots=True)
class NumberedRequest(Request):
    """`number` tells it from an earlier one with the same id."""

    number: int = 0


@dataclass(frozen=True)
class NumberedInputs(EmbeddingRequest):
    """`number` tells it from an earlier one with the same id."""

    number: int = 0


def text_request(add: AddText, held: Held) -> NumberedRequest:
    """The request, with what is held for it."""
    chat = None
    if add.tools is not None:
        chat = ChatFormat(tuple(from_json(add.tools)), add.max_calls)
    return NumberedRequest(
        add.id,
        tuple(from_bytes(add.prompt)),
        _with_guide(add.sampling, held),
        add.continues_text,
        chat,
        held.get(add.images),
        add.alone,
        add.number,
    )


def inputs_request(add: AddInputs) -> NumberedInputs:
    """The request."""
    inputs = tuple(EncoderInput(from_bytes(tokens), second) for tokens, second in add.inputs)
    return NumberedInputs(add.id, inputs, add.alone, add.number)


def _with_guide(sampling: SamplingParams, held: Held) -> SamplingParams:
    guide = sampling.guide
    if guide is None or guide.compiled is None:
        return sampling
    return replace(sampling, guide=replace(guide, compiled=held.get(guide.compiled)))
