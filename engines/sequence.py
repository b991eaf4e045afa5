"""One request inside the scheduler: where it is, what it has generated, how long it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from mlxd.engines.backend import Admitted, TextPiece, TextStream, TokenEvent
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
    """Mutable books of one request; times are the scheduler's clock in seconds."""

    request: Request
    arrived: float
    max_tokens: int
    state: RequestState = RequestState.WAITING
    waiting_for: str | None = "slot"
    uid: int | None = None
    text: TextStream | None = None
    completion_tokens: int = 0
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    asked_for_room: bool = False
    awaits_room: bool = False
    awaits_prefix: bool = False
    cached_tokens: int = 0
    cacheable_tokens: int = 0
    looked_up_at: int | None = None
    held_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @cached_property
    def tokens(self) -> Tokens:
        """The prompt in a form that is quick to compare."""
        return token_array(self.request.prompt)

    @property
    def uncached_tokens(self) -> int:
        """Tokens of the prompt that are processed for it, as far as is known."""
        return len(self.request.prompt) - self.cacheable_tokens

    def admit(self, row: Admitted, text: TextStream, now: float) -> None:
        """The sequence has a slot in the batch."""
        self.uid, self.text = row.uid, text
        self.cached_tokens = self.cacheable_tokens = row.cached_tokens
        self.admitted = now
        self.state, self.waiting_for = RequestState.PREFILLING, None

    def take(self, event: TokenEvent, now: float) -> RequestOutput | None:
        """Book one token; None when it made nothing to show and ended nothing."""
        text = self.text
        assert text is not None, "a sequence decodes only after admit"
        self._count(now)
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

    def _count(self, now: float) -> None:
        self.completion_tokens += 1
        self.last_token = now
        if self.first_token is None:
            self.first_token = now
            self.state = RequestState.DECODING

    @staticmethod
    def _reason(event: TokenEvent, text: TextStream) -> FinishReason | None:
        if event.is_end or text.stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if event.is_last else None
