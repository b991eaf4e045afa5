"""Makes the objects of one OpenAI answer from an engine's outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from mlxd.daemon.api.inference import Inference
from mlxd.daemon.api.interleave import Indexed
from mlxd.daemon.api.openai.logprobs import TokenBytes
from mlxd.daemon.api.openai.objects import (
    Answer,
    CachedTokens,
    ChatChoice,
    ChunkChoice,
    TextChoice,
    UsageObject,
)
from mlxd.daemon.api.services import Services
from mlxd.daemon.api.vendor import Vendor, vendor_of
from mlxd.engines.types import RequestOutput, Usage

Step = ChunkChoice | TextChoice


class ChoiceWriter(Protocol):
    """Writes one choice, whole or step by step."""

    def opening(self) -> Sequence[Step]:
        """What a stream starts with, before any text."""

    def steps(self, output: RequestOutput) -> Sequence[Step]:
        """The next steps of a stream; those of the last output end with the finish reason."""

    def whole(self, output: RequestOutput) -> ChatChoice | TextChoice:
        """The choice in one piece."""


class Wording(Protocol):
    """How one call says it: the kinds of its objects and its choices."""

    @property
    def prefix(self) -> str: ...

    @property
    def whole_kind(self) -> str: ...

    @property
    def chunk_kind(self) -> str: ...

    def writer(self, index: int, token_bytes: TokenBytes) -> ChoiceWriter:
        """A writer for the choice of this number."""


@dataclass(slots=True)
class Printer:
    """Makes the objects of one answer of `choices` choices, `n` for each prompt; `model` is the name that the client
    knows.
    """

    wording: Wording
    inference: Inference
    model: str
    created: int
    fingerprint: str
    include_usage: bool
    choices: int
    n: int
    _writers: dict[int, ChoiceWriter] = field(default_factory=dict)
    _ended: dict[int, RequestOutput] = field(default_factory=dict)

    def chunks(self, index: int, output: RequestOutput) -> Iterator[Answer[Any]]:
        """Chunks for one output; after the last choice's end comes the usage, if it was asked for."""
        steps: list[Step] = []
        if index not in self._writers:
            self._writers[index] = self.wording.writer(index, self.inference.token_bytes)
            steps += self._writers[index].opening()
        steps += self._writers[index].steps(output)
        if output.finish_reason is not None:
            self._ended[index] = output
        vendor = (
            vendor_of(self.inference, self._ended[0], self._ended.values())
            if len(self._ended) == self.choices
            else UNSET
        )
        last = len(steps) - 1
        for place, step in enumerate(steps):
            yield self._chunk([step], vendor=vendor if place == last and not self.include_usage else UNSET)
        if self.include_usage and vendor is not UNSET:
            yield self._chunk([], usage=usage_object(self._usage(self._ended)), vendor=vendor)

    def whole(self, outputs: Sequence[Indexed]) -> Answer[Any]:
        """The answer in one piece, from all outputs of all choices."""
        received: dict[int, list[RequestOutput]] = {index: [] for index in range(self.choices)}
        for index, output in outputs:
            received[index].append(output)
        whole = {index: RequestOutput.joined(pieces) for index, pieces in received.items()}
        written = [
            self.wording.writer(index, self.inference.token_bytes).whole(output) for index, output in whole.items()
        ]
        usage = usage_object(self._usage(whole))
        return self._object(
            self.wording.whole_kind, written, usage, vendor_of(self.inference, whole[0], whole.values())
        )

    def _chunk(
        self, steps: list[Step], *, usage: UsageObject | None = None, vendor: Vendor | UnsetType = UNSET
    ) -> Answer[Any]:
        return self._object(self.wording.chunk_kind, steps, usage if self.include_usage else UNSET, vendor)

    def _object(
        self,
        kind: str,
        choices: Sequence[Step | ChatChoice],
        usage: UsageObject | UnsetType | None,
        vendor: Vendor | UnsetType,
    ) -> Answer[Any]:
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

    def _usage(self, ended: Mapping[int, RequestOutput]) -> Usage:
        """All tokens; each prompt counts once, with what the cache gave its first choice."""
        firsts = [ended[index].usage for index in range(0, self.choices, self.n)]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
            completion_tokens=sum(output.usage.completion_tokens for output in ended.values()),
            cached_tokens=sum(usage.cached_tokens for usage in firsts),
        )


def usage_object(usage: Usage) -> UsageObject:
    """Token counts as OpenAI shows them."""
    total = usage.prompt_tokens + usage.completion_tokens
    return UsageObject(usage.prompt_tokens, usage.completion_tokens, total, CachedTokens(usage.cached_tokens))


def fingerprint(services: Services, model: str) -> str:
    """The same for as long as version, model and its size stay the same."""
    spec = services.registry.spec(model)
    what = f"{services.version} {spec.name} {spec.path} {spec.weight_bytes}"
    return f"fp_{hashlib.sha256(what.encode()).hexdigest()[:10]}"
