"""One request inside the scheduler: where it is, what it has generated, how long it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from mlxd.engines.backend import Admitted, Prefixes, TextPiece, TextStream, TokenEvent
from mlxd.engines.token_arrays import Tokens, token_array
from mlxd.engines.types import (
    FinishReason,
    Request,
    RequestOutput,
    RequestState,
    RequestStatus,
    Timing,
    TokenLogprobs,
    Usage,
)


@dataclass(eq=False)
class Sequence:
    """Mutable books of one request; times are the scheduler's clock in seconds.

    While it waits: `awaits_room` for the answer to a PrefillEvictionRequest, asked or answered at `asked_at`, for
    `asked_bytes`, with others at work if `asked_beside`; `awaits_memory`, since `held_since`, for others to give some
    back; `awaits_prefix` for the disk. `preempted` while it waits for a second time, with what it has `generated`;
    `awaits_departure` until one of those that it gave way to has ended. `chunk` bounds its prefill steps.
    """

    request: Request
    arrived: float
    max_tokens: int
    state: RequestState = RequestState.WAITING
    waiting_for: str | None = "slot"
    uid: int | None = None
    text: TextStream | None = None
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    asked_at: float | None = None
    asked_beside: bool = False
    asked_bytes: int = 0
    held_since: float | None = None
    awaits_room: bool = False
    awaits_memory: bool = False
    awaits_prefix: bool = False
    preempted: bool = False
    awaits_departure: bool = False
    chunk: int = 0
    generated: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    cacheable_tokens: int = 0
    looked_up_at: int | None = None
    held_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def pending(self) -> tuple[int, ...]:
        """What is processed before it decodes: the prompt, and what it had generated when it was preempted."""
        return (*self.request.prompt, *self.generated) if self.preempted else self.request.prompt

    @property
    def completion_tokens(self) -> int:
        """Tokens that it has generated."""
        return len(self.generated)

    @property
    def left(self) -> int:
        """Tokens that it may still generate."""
        return self.max_tokens - self.completion_tokens

    @cached_property
    def tokens(self) -> Tokens:
        """`pending` in a form that is quick to compare, with each image's own keys."""
        tokens, images = token_array(self.pending), self.request.images
        return tokens if images is None else images.keyed(tokens)

    @property
    def uncached_tokens(self) -> int:
        """Tokens that are processed for it, as far as is known."""
        return len(self.tokens) - self.cacheable_tokens

    def look_up(self, prefixes: Prefixes) -> int:
        """How many of its tokens the prefix cache has, while it waits; compared anew only when that may be others."""
        if self.looked_up_at != prefixes.changes:
            self.looked_up_at = prefixes.changes
            self.cacheable_tokens = prefixes.cached_tokens(self.tokens)
        return self.cacheable_tokens

    @property
    def can_start(self) -> bool:
        """Whether a look at it may have it start."""
        return not (self.awaits_prefix or self.awaits_room or self.awaits_memory)

    def admit(self, row: Admitted, text: TextStream, now: float) -> None:
        """The sequence has a slot in the batch."""
        self.uid, self.text = row.uid, text
        self.cacheable_tokens = row.cached_tokens
        if self.admitted is None:
            self.admitted, self.cached_tokens = now, row.cached_tokens
        self.preempted = False
        self.state, self.waiting_for = RequestState.PREFILLING, None

    def preempt(self) -> None:
        """It has lost its slot to others, and goes on from what it has generated when it gets one again."""
        self.uid, self.state, self.waiting_for = None, RequestState.WAITING, "memory"
        self.preempted = self.awaits_departure = True
        self.asked_at = self.held_since = self.looked_up_at = None
        self.cacheable_tokens = 0
        vars(self).pop("tokens", None)

    def take(self, event: TokenEvent, now: float) -> RequestOutput | None:
        """Book one token; None when it made nothing to show and ended nothing."""
        text = self.text
        assert text is not None, "a sequence decodes only after admit"
        self._count(event.token, now)
        piece = TextPiece()
        if not event.is_end:
            piece = text.push(event.token)
            if event.logprobs is not None:
                self.held_logprobs.append(event.logprobs)
        reason = self._reason(event, text)
        if reason is None:
            return self._output(piece) if piece else None
        if not text.stopped:
            piece += text.finish()
        if text.stopped:
            reason = FinishReason.STOP
        return self._output(piece, reason)

    def cancel(self) -> RequestOutput:
        """The last output of a sequence that is cancelled on purpose: what was held back."""
        piece = self.text.finish() if self.text is not None else TextPiece()
        return self._output(piece, FinishReason.STOP, cancelled=True)

    def _output(
        self, piece: TextPiece, reason: FinishReason | None = None, *, cancelled: bool = False
    ) -> RequestOutput:
        # Tokens of a stop string are never shown, and neither are their logprobs.
        logprobs: tuple[TokenLogprobs, ...] = ()
        if piece or self.text is None or not self.text.stopped:
            logprobs, self.held_logprobs = tuple(self.held_logprobs), []
        return RequestOutput(
            text=piece.text,
            usage=self.usage,
            timing=self.timing if reason is not None else Timing(),
            finish_reason=reason,
            cancelled=cancelled,
            stop=self.text.stop if reason is not None and self.text is not None else None,
            reasoning=piece.reasoning,
            tool_calls=piece.tool_calls,
            logprobs=logprobs,
        )

    @property
    def usage(self) -> Usage:
        return Usage(len(self.request.prompt), self.completion_tokens, self.cached_tokens)

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the first; None before the second token."""
        if self.completion_tokens < 2 or self.first_token is None or self.last_token is None:  # noqa: PLR2004
            return None
        span = self.last_token - self.first_token
        return (self.completion_tokens - 1) / span if span > 0 else None

    @property
    def timing(self) -> Timing:
        started = self.admitted
        return Timing(
            prefill_s=None if started is None or self.first_token is None else self.first_token - started,
            ttft_s=None if self.first_token is None else self.first_token - self.arrived,
            decode_tps=self.decode_tps,
        )

    def status(self, now: float) -> RequestStatus:
        """What `/admin/requests` shows of it."""
        return RequestStatus(
            id=self.request.id,
            state=self.state,
            age_s=now - self.arrived,
            usage=self.usage,
            decode_tps=self.decode_tps,
            waiting_for=self.waiting_for,
        )

    def _count(self, token: int, now: float) -> None:
        self.generated.append(token)
        self.state = RequestState.DECODING
        self.last_token = now
        if self.first_token is None:
            self.first_token = now

    @staticmethod
    def _reason(event: TokenEvent, text: TextStream) -> FinishReason | None:
        if event.is_end or text.stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if event.is_last else None
