"""One request inside the scheduler: where it is, what it has generated, how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from mlxd.engines.backend import TextStream, TokenEvent
from mlxd.engines.types import (
    FinishReason,
    Request,
    RequestOutput,
    RequestState,
    RequestStatus,
    Timing,
    Usage,
)


@dataclass(slots=True, eq=False)
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

    def admit(self, uid: int, text: TextStream, now: float) -> None:
        """The sequence has a slot in the batch."""
        self.uid, self.text = uid, text
        self.admitted = now
        self.state, self.waiting_for = RequestState.PREFILLING, None

    def take(self, event: TokenEvent, now: float) -> RequestOutput | None:
        """Book one token; None when it made no text and ended nothing."""
        text = self.text
        assert text is not None, "a sequence decodes only after admit"
        self._count(now)
        shown = "" if event.is_end else text.push(event.token)
        reason = self._reason(event, text)
        if reason is None:
            return RequestOutput(shown, self.usage) if shown else None
        if not text.stopped:
            shown += text.finish()
        if text.stopped:
            reason = FinishReason.STOP
        return RequestOutput(shown, self.usage, self.timing, reason)

    def cancel(self) -> RequestOutput:
        """The last output of a sequence that is cancelled on purpose: the text that was held back."""
        shown = self.text.finish() if self.text is not None else ""
        return RequestOutput(shown, self.usage, self.timing, FinishReason.STOP, cancelled=True)

    @property
    def usage(self) -> Usage:
        return Usage(len(self.request.prompt), self.completion_tokens)

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
