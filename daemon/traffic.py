"""What requests came to, as counters and histograms."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

from mlxd.engines.types import RequestOutput, Timing

# Seconds. A queue may be as long as a load takes, a first token as a long prompt.
_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 1.0, 2.5)


class Outcome(StrEnum):
    """How a request ended: `cancelled` on purpose, `disconnected` when its client left, `refused` for what is the
    client's to change, `failed` for all else.
    """

    OK = "ok"
    CANCELLED = "cancelled"
    DISCONNECTED = "disconnected"
    REFUSED = "refused"
    FAILED = "failed"


class Traffic:
    """Series of a model are there once it had a request, until `forget`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._models: set[str] = set()
        self._requests = Counter(
            "mlxd_requests",
            "Requests that named a model and have ended.",
            ["model", "api", "outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "mlxd_tokens",
            "Tokens of prompts, those of them that a kept prefix gave, and generated ones.",
            ["model", "kind"],
            registry=registry,
        )
        self._refusals = Counter(
            "mlxd_refusals", "Requests that were answered with an error, by its code.", ["code"], registry=registry
        )
        self._queue = Histogram(
            "mlxd_request_queue_seconds",
            "From the arrival of a request until it had its model, a load included.",
            registry=registry,
            buckets=_WAIT_BUCKETS,
        )
        self._first_token = Histogram(
            "mlxd_time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            registry=registry,
            buckets=_WAIT_BUCKETS,
        )
        self._per_token = Histogram(
            "mlxd_time_per_output_token_seconds",
            "Mean time between the tokens of an answer, once an answer.",
            registry=registry,
            buckets=_TOKEN_BUCKETS,
        )

    def ended(self, model: str, api: str, outcome: Outcome) -> None:
        """A request is over."""
        self._models.add(model)
        self._requests.labels(model, api, outcome).inc()

    def refused(self, code: str) -> None:
        """An error was answered."""
        self._refusals.labels(code).inc()

    def queued(self, seconds: float) -> None:
        """A request has its model."""
        self._queue.observe(seconds)

    def answer(self, model: str) -> AnswerTraffic:
        """Counts one answer of this model."""
        return AnswerTraffic(self, model)

    def counter(self, model: str, kind: str) -> Counter:
        """The series of a model's `prompt`, `cached` or `completion` tokens."""
        self._models.add(model)
        return self._tokens.labels(model, kind)

    def timed(self, first_token_s: float | None, timing: Timing) -> None:
        """An answer is complete; `first_token_s` counts from the request's arrival."""
        if first_token_s is not None:
            self._first_token.observe(first_token_s)
        if timing.decode_tps:
            self._per_token.observe(1 / timing.decode_tps)

    def forget(self, all_but: Collection[str]) -> None:
        """Drop the series of all models but these."""
        for model in self._models.difference(all_but):
            self._requests.remove_by_labels({"model": model})
            self._tokens.remove_by_labels({"model": model})
            self._models.discard(model)


class AnswerTraffic:
    """The tokens of one request's answers, counted as they come; its series are looked up once and not with each."""

    def __init__(self, traffic: Traffic, model: str) -> None:
        self._completion = traffic.counter(model, "completion")
        self._prompt = traffic.counter(model, "prompt")
        self._cached = traffic.counter(model, "cached")
        self._generated: dict[int, int] = {}

    def take(self, choice: int, output: RequestOutput, *, own_prompt: bool) -> int:
        """Count what is new, and give how many were generated; answers that share their prompt count it once."""
        now, before = output.usage, self._generated.get(choice)
        self._generated[choice] = now.completion_tokens
        generated = now.completion_tokens - (before or 0)
        self._completion.inc(generated)
        if before is None and own_prompt:
            self._prompt.inc(now.prompt_tokens)
            self._cached.inc(now.cached_tokens)
        return generated
