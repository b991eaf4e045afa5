"""The nouns that cross an engine's boundary. Nothing here imports MLX."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from mlxd.engines.embedding_types import EncoderInfo
from mlxd.engines.prompt_images import PromptImages
from mlxd.engines.shards import Shards


class GuideKind(enum.StrEnum):
    """What a guide's text is: JSON Schema, a regular expression, or a Lark grammar as llguidance reads it."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Guide:
    """The form that an answer must have. `compiled` is what `check_guide` has made of it, so that no lane has to."""

    kind: GuideKind
    text: str
    compiled: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Validated at the edge: every value here is in range.

    `temperature` 0 is greedy. `top_p` 1, `top_k` 0 and `min_p` 0 are off. `repetition_penalty` 1 is off and
    counts the prompt; presence and frequency penalties count generated tokens only. `stop` holds decoded text.
    `xtc_probability` 0 is off. Before `min_tokens` no end token is sampled and no stop string ends the answer;
    `ignore_eos` takes end tokens as text that is not shown. `logprobs` is how many of the likeliest tokens are
    reported beside each generated one, None for no report.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    guide: Guide | None = None


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a chat's answer is read: reasoning and tool calls are told from text by the model's own markers.

    `tools` are the function tools offered, as the template got them; without any a call stays text. After `max_calls`
    calls (None for no bound) the answer ends.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    max_calls: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model made; `arguments` is JSON text, `id` what the model called it, if it did."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A generated token with its log-probability, and the likeliest tokens with theirs, best first.

    They are those of the distribution that was sampled: after penalties, bias and guide, before temperature.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate: `prompt` is its token ids, non-empty.

    `continues_text` is for raw prompts and answers that are begun: the answer goes on where the prompt stops, so its
    first space is kept.
    `chat` is how a chat's answer is taken apart; without it all of the answer is text. `images` stand at their places
    in the prompt. An engine that is idle begins at once with a request that is `alone`: no other one is on its way.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    continues_text: bool = False
    chat: ChatFormat | None = None
    images: PromptImages | None = field(default=None, compare=False, repr=False)
    alone: bool = field(default=False, compare=False)


class FinishReason(enum.StrEnum):
    """Why a sequence ended. `STOP` is an end token or a stop string, `LENGTH` the token limit."""

    STOP = "stop"
    LENGTH = "length"


class Usage(Struct, frozen=True):
    """Tokens of one request. `completion_tokens` counts an end token, which has no text."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0


class Timing(Struct, frozen=True):
    """Seconds, from the request's arrival at its engine; None until it happened."""

    prefill_s: float | None = None
    ttft_s: float | None = None
    decode_tps: float | None = None


class RequestOutput(Struct, frozen=True):
    """New text since the last output of this request; the last one has a `finish_reason` and the timing.

    `reasoning` is text that the model thought before it answered, `tool_calls` are calls that became complete, and
    `logprobs` are those of the new tokens, if they were asked for. `cancelled` marks the last output of a request
    that was cancelled on purpose and keeps what it generated, `stop` is the stop string that ended the answer. Within
    one output the reasoning comes first, then the text, then the calls.
    """

    text: str
    usage: Usage
    timing: Timing = Timing()
    finish_reason: FinishReason | None = None
    cancelled: bool = False
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    stop: str | None = None

    @staticmethod
    def joined(pieces: Sequence[RequestOutput]) -> RequestOutput:
        """Successive outputs of one request as one; at least one."""
        return structs.replace(
            pieces[-1],
            text="".join(piece.text for piece in pieces),
            reasoning="".join(piece.reasoning for piece in pieces),
            tool_calls=tuple(chain.from_iterable(piece.tool_calls for piece in pieces)),
            logprobs=tuple(chain.from_iterable(piece.logprobs for piece in pieces)),
        )


class RequestState(enum.StrEnum):
    """Where an admitted request is inside its engine."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """A live request as the engine sees it; `waiting_for` is "slot" or "memory" while it waits."""

    id: str
    state: RequestState
    age_s: float
    usage: Usage
    decode_tps: float | None = None
    waiting_for: str | None = None


@dataclass(frozen=True, slots=True)
class PrefillEvictionRequest:
    """The engine asks for room before a prefill: bytes it needs and bytes it has."""

    request_id: str
    needed_bytes: int
    headroom_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Weight bytes evaluated so far, of all."""

    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a model once it is loaded: ids are below `vocab_size`; weights in bytes.

    `encoder` is there for a model that makes embeddings or scores and generates no text.
    """

    vocab_size: int
    weight_bytes: int
    encoder: EncoderInfo | None = None


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The part of an EngineConfig that a loaded engine takes anew; every count is 1 or more.

    `max_running` and `max_waiting` count sequences, `prefill_chunk` tokens. `max_stall` and `hold_timeout`, None for no
    bound, and `prefix_spill_timeout` are seconds.
    """

    max_running: int
    max_waiting: int
    prefill_chunk: int
    max_stall: float | None
    prefix_spill_timeout: float
    hold_timeout: float | None = 120.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Frozen limits of one engine. Lengths in tokens, durations in seconds.

    A prefill step takes at most `prefill_chunk` tokens of each of `prefill_batch` prompts, and while others decode
    about `max_stall` (None for no bound). `burst_window` is how long an idle engine waits after an arrival that is
    not alone, so that a burst starts as one batch. `max_step_failures` consecutive failing steps end the engine.
    `prefix_cache_bytes` bounds what is kept of processed prompts, 0 for nothing, `prefix_disk_bytes` what of it is kept
    on the disk. At an unload at most `prefix_spill_timeout` seconds go into writing it. `kv_bytes_per_token` is one
    sequence's, 0 when unknown, and so is `attention_heads`; `itemsize` are the bytes of a number as the model computes.
    A prompt waits for memory at most `hold_timeout` seconds (None for no bound).
    `adapter` is the folder of a LoRA adapter, `draft` that of a smaller model that proposes `draft_tokens` tokens
    a round (speculative decoding). With `vision` the model takes images. With `shards` it is spread over several hosts.
    """

    name: str
    path: Path
    context_length: int
    max_running: int = 32
    max_waiting: int = 256
    prefill_chunk: int = 2048
    prefill_batch: int = 8
    max_stall: float | None = 0.25
    burst_window: float = 0.004
    max_step_failures: int = 3
    prefix_cache_bytes: int = 0
    prefix_disk_bytes: int = 0
    prefix_spill_timeout: float = 10.0
    kv_bytes_per_token: int = 0
    attention_heads: int = 0
    itemsize: int = 4
    hold_timeout: float | None = 120.0
    adapter: Path | None = None
    draft: Path | None = None
    draft_tokens: int = 3
    vision: bool = False
    shards: Shards | None = None

    @property
    def limits(self) -> EngineLimits:
        """What `EngineCore.retune` can change."""
        return EngineLimits(
            self.max_running,
            self.max_waiting,
            self.prefill_chunk,
            self.max_stall,
            self.prefix_spill_timeout,
            self.hold_timeout,
        )

    def with_limits(self, limits: EngineLimits) -> EngineConfig:
        """The same config with other limits."""
        return replace(
            self,
            max_running=limits.max_running,
            max_waiting=limits.max_waiting,
            prefill_chunk=limits.prefill_chunk,
            max_stall=limits.max_stall,
            prefix_spill_timeout=limits.prefix_spill_timeout,
            hold_timeout=limits.hold_timeout,
        )


@dataclass(frozen=True, slots=True)
class DraftStats:
    """Tokens that a draft model has proposed, and how many of them its model agreed with."""

    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot that never waits for the engine thread. `promised_bytes` are what running sequences may still take,
    `preempted` counts sequences that gave their memory back to others and went on later.
    """

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    decode_tps: float = 0.0
    heartbeat_age_s: float = 0.0
    kv_bytes: int = 0
    promised_bytes: int = 0
    prefix_cache_bytes: int = 0
    preempted: int = 0
    draft: DraftStats | None = None
