"""The nouns of embedding engines: what goes in, what comes out, what is known of a model. Nothing here imports MLX."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

_NO_PROMPTS: Mapping[str, str] = MappingProxyType({})


class EncoderHead(enum.StrEnum):
    """What comes out of a model: a vector for each text, or one score for each pair of texts (a cross-encoder)."""

    EMBEDS = "embeds"
    SCORES = "scores"


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """What is known of a loaded encoder. `dimensions` are the numbers that come out for each input, `max_length` the
    tokens that it may have, special ones included. `unit` says whether vectors have length 1. `prompts` are texts that
    go before an input, by name; `default_prompt` is the name of the one for inputs that name none.
    """

    head: EncoderHead
    dimensions: int
    max_length: int
    unit: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: _NO_PROMPTS)
    default_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """Token ids as the model takes them, special ones included; of a pair's second text are the last `second`."""

    tokens: array[int]
    second: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class EmbeddingRequest:
    """Inputs that are answered together; at least one. `alone` is as in a Request."""

    id: str
    inputs: tuple[EncoderInput, ...]
    alone: bool = field(default=False, compare=False)

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(map(len, self.inputs))


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """For each input its numbers as little-endian float32. In a `cancelled` one those that were not reached are None,
    and `prompt_tokens` counts the others. `seconds` is from the arrival at the engine.
    """

    vectors: tuple[bytes | None, ...]
    prompt_tokens: int
    seconds: float
    cancelled: bool = False
