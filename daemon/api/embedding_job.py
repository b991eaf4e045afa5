"""Texts to vectors, for every facade that has a call for it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxd.daemon.api.encoding import Caller, Encoded, Encoder, Task, encode
from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.services import Services
from mlxd.engines.embedding_types import EncoderHead, EncoderInfo, EncoderInput
from mlxd.engines.errors import InputTooLong
from mlxd.engines.imported_later import later

if TYPE_CHECKING:
    import numpy as np
else:
    np = later("numpy")


@dataclass(frozen=True, slots=True)
class EmbeddingJob:
    """What a facade wants vectors of: `inputs` are texts, or token ids that are taken as they are.

    `param` is the field that holds them; `is_list` says whether it is a list, so that one of them can be named.
    With `truncate` an input that is too long is cut at its end, else it is refused. `dimensions` is how many numbers of
    each vector are wanted, None for all. With `unit` vectors have length 1 whether the model says so or not.
    `prompt_name` is one of the texts that the model has to go before an input, None for its default.
    """

    inputs: Sequence[str] | Sequence[Sequence[int]]
    param: str = "input"
    is_list: bool = True
    truncate: bool = False
    dimensions: int | None = None
    unit: bool = False
    prompt_name: str | None = None

    def place(self, number: int) -> str:
        """The name of an input."""
        return f"{self.param}[{number}]" if self.is_list else self.param


@dataclass(frozen=True, slots=True)
class Vectors:
    """The numbers of each input as little-endian float32, None where a cancel came before; and how they came about."""

    vectors: tuple[bytes | None, ...]
    encoded: Encoded


async def embed(services: Services, caller: Caller, job: EmbeddingJob) -> Vectors:
    """Make the vectors; ended early by a cancel it has those that were made.

    Raises the errors of the registry and of engines, InvalidField and UnsupportedCapability.
    """
    encoded = await encode(services, caller, Task(lambda encoder: _inputs(job, encoder), job.place))
    vectors = encoded.vectors or (None,) * len(job.inputs)
    cuts = encoded.info is not None and job.dimensions not in (None, encoded.info.dimensions)
    normalise = encoded.info is not None and (cuts or not encoded.info.unit) and (job.unit or encoded.info.unit)
    if cuts or normalise:
        vectors = await asyncio.to_thread(_shaped, vectors, job.dimensions, normalise=normalise)
    return Vectors(vectors, encoded)


def floats(vector: bytes) -> list[float]:
    """The numbers of a vector."""
    numbers: list[float] = np.frombuffer(vector, "<f4").tolist()
    return numbers


def _inputs(job: EmbeddingJob, encoder: Encoder) -> list[EncoderInput]:
    info = encoder.info
    if info.head is not EncoderHead.EMBEDS:
        raise UnsupportedCapability("this model scores pairs of texts and makes no embeddings; use /v1/rerank", "model")
    if job.dimensions is not None and job.dimensions > info.dimensions:
        message = f"dimensions: the vectors of this model have {info.dimensions} numbers; ask for at most so many"
        raise InvalidField(message, "dimensions")
    prompt = _prompt(job, info)
    texts = [prompt + text for text in job.inputs if isinstance(text, str)]
    if len(texts) == len(job.inputs):
        return encoder.tokenizer.inputs(texts, truncate=job.truncate)
    given = [tokens for tokens in job.inputs if not isinstance(tokens, str)]
    return [_as_given(job, encoder, number, tokens) for number, tokens in enumerate(given)]


def _as_given(job: EmbeddingJob, encoder: Encoder, number: int, tokens: Sequence[int]) -> EncoderInput:
    """Token ids as an input. Of more than the model takes, which may be millions, the rest is not looked at."""
    most = encoder.info.max_length
    kept = tokens[:most]
    if max(kept, default=0) >= encoder.vocab_size or min(kept, default=0) < 0:
        raise _unknown_ids(job.place(number), encoder.vocab_size)
    if len(tokens) > most and not job.truncate:
        raise InputTooLong(number, len(tokens), most)
    return EncoderInput(array("i", kept))


def _unknown_ids(place: str, vocab_size: int) -> InvalidField:
    return InvalidField(
        f"{place}: expected token ids from 0 to {vocab_size - 1}; they are this model's own, so send text instead",
        place,
    )


def _prompt(job: EmbeddingJob, info: EncoderInfo) -> str:
    name = job.prompt_name if job.prompt_name is not None else info.default_prompt
    if name is None:
        return ""
    if name not in info.prompts:
        known = ", ".join(sorted(info.prompts)) or "none"
        raise InvalidField(f"prompt_name: this model has no such prompt; it has: {known[:300]}", "prompt_name")
    return info.prompts[name]


def _shaped(vectors: tuple[bytes | None, ...], dimensions: int | None, *, normalise: bool) -> tuple[bytes | None, ...]:
    """The first numbers of each, and those with length 1 if need be; a vector of nothing stays one."""
    made = [vector for vector in vectors if vector is not None]
    if not made:
        return vectors
    matrix = np.frombuffer(b"".join(made), "<f4").reshape(len(made), -1)[:, :dimensions]
    if normalise:
        matrix = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), np.float32(1e-12))
    shaped = iter(matrix)
    return tuple(None if vector is None else next(shaped).tobytes() for vector in vectors)
