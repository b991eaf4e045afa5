"""Makes the objects of one OpenAI answer from an engine's outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from msgspec import UNSET, UnsetType

from mlxd.daemon.api.inference import Inference
from mlxd.daemon.api.openai_objects import (
    Answer,
    CachedTokens,
    ChatChoice,
    ChunkChoice,
    TextChoice,
    UsageObject,
    Vendor,
)
from mlxd.daemon.api.services import Services
from mlxd.engines.types import RequestOutput, Usage

Choices = list[ChunkChoice] | list[ChatChoice] | list[TextChoice]


class Wording(Protocol):
    """How one call says it: the kinds of its objects and its choices."""

    @property
    def prefix(self) -> str: ...

    @property
    def whole_kind(self) -> str: ...

    @property
    def chunk_kind(self) -> str: ...

    def opening(self) -> Choices:
        """What a stream starts with, before any text."""

    def piece(self, text: str) -> Choices:
        """New text in a stream."""

    def finish(self, reason: str) -> Choices:
        """The end of the text in a stream."""

    def whole(self, text: str, reason: str) -> Choices:
        """The answer in one piece."""


@dataclass(frozen=True, slots=True)
class Printer:
    """Makes the objects of one answer; `model` is the name that the client knows."""

    wording: Wording
    inference: Inference
    model: str
    created: int
    fingerprint: str
    include_usage: bool

    def opening(self) -> list[Answer]:
        """Chunks that come before any text."""
        choices = self.wording.opening()
        return [self._chunk(choices)] if choices else []

    def chunks(self, output: RequestOutput) -> Iterator[Answer]:
        """Chunks for one output; after the last one comes the usage, if it was asked for."""
        if output.text:
            yield self._chunk(self.wording.piece(output.text))
        if output.finish_reason is None:
            return
        vendor = _vendor(self.inference, output)
        ending = self.wording.finish(str(output.finish_reason))
        yield self._chunk(ending, vendor=UNSET if self.include_usage else vendor)
        if self.include_usage:
            yield self._chunk([], usage=usage_object(output.usage), vendor=vendor)

    def whole(self, text: str, last: RequestOutput) -> Answer:
        """The answer in one piece; `last` is the output with the finish reason."""
        choices = self.wording.whole(text, str(last.finish_reason))
        kind = self.wording.whole_kind
        return self._object(kind, choices, usage_object(last.usage), _vendor(self.inference, last))

    def _chunk(
        self, choices: Choices, *, usage: UsageObject | None = None, vendor: Vendor | UnsetType = UNSET
    ) -> Answer:
        return self._object(self.wording.chunk_kind, choices, usage if self.include_usage else UNSET, vendor)

    def _object(
        self, kind: str, choices: Choices, usage: UsageObject | UnsetType | None, vendor: Vendor | UnsetType
    ) -> Answer:
        return Answer(
            id=f"{self.wording.prefix}{self.inference.id}",
            object=kind,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=usage,
            mlxd=vendor,
        )


def usage_object(usage: Usage) -> UsageObject:
    """Token counts as OpenAI shows them."""
    total = usage.prompt_tokens + usage.completion_tokens
    return UsageObject(usage.prompt_tokens, usage.completion_tokens, total, CachedTokens(usage.cached_tokens))


def fingerprint(services: Services, model: str) -> str:
    """The same for as long as version, model and its size stay the same."""
    spec = services.registry.model(model).spec
    what = f"{services.version} {spec.name} {spec.path} {spec.weight_bytes}"
    return f"fp_{hashlib.sha256(what.encode()).hexdigest()[:10]}"


def _vendor(inference: Inference, last: RequestOutput) -> Vendor:
    timing = last.timing
    return Vendor(
        queue_s=round(inference.queue_s, 4),
        load_s=round(inference.load_s, 4),
        prefill_s=_rounded(timing.prefill_s),
        ttft_s=_rounded(inference.ttft_s(timing)),
        decode_tps=_rounded(timing.decode_tps),
        cancelled=last.cancelled,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
