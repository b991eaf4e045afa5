"""What `mlxd bench` measures of a model, through the API, as any client would see it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.chunks import Chunk, answer_chunks
from mlxd.daemon.cli.client import DaemonClient, model_path
from mlxd.daemon.cli.failures import CommandFailed, NotReachable
from mlxd.daemon.cli.views import ModelView

_PATH = "/v1/completions"
# About as many as what makes a prompt a new one takes.
_NONCE_TOKENS = 10
_WORDS = ("river", "stone", "north", "letter", "seven", "quiet", "market", "yellow", "engine", "paper")


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer: moments of monotonic seconds, and the tokens that the daemon counted."""

    asked: float
    first: float
    last: float
    prompt_tokens: int
    tokens: int
    prefill_s: float | None


class Figures(msgspec.Struct, frozen=True, omit_defaults=False):
    """Of one model; medians of all rounds. Times in seconds, rates in tokens a second; None where there is none.

    `streams` has the rate of all answers together by how many ran at once.
    """

    model: str
    load_s: float | None = None
    prompt_tokens: int | None = None
    ttft_s: float | None = None
    prompt_tps: float | None = None
    streams: dict[int, float] = {}
    resident_bytes: int | None = None
    error: str | None = None


class Swap(msgspec.Struct, frozen=True):
    """From asking a model that another one has displaced, or is beside it, to its first token, in seconds."""

    model: str
    before: str
    ttft_s: float | None = None
    evicted: bool | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: tokens of the prompt and of each answer, answers at once, rounds of each."""

    prompt_tokens: int
    tokens: int
    streams: Sequence[int]
    rounds: int


class Bench:
    """Measurements over one connection pool."""

    def __init__(self, client: DaemonClient, plan: Plan) -> None:
        self._client = client
        self._plan = plan

    async def load(self, model: str) -> float | None:
        """Load a model that is not in memory, and how long that took; None for one that is."""
        if view(await self._client.get(model_path(model)), ModelView).is_in_memory():
            return None
        started = time.monotonic()
        await self._client.call("POST", model_path(model, "load"), {})
        return time.monotonic() - started

    async def measure(self, model: str) -> Figures:
        """All of one model. Raises CommandFailed."""
        plan = self._plan
        load_s = await self.load(model)
        await self._ask(model, 8, 2)  # what is done once is no part of the figures
        firsts = [await self._ask(model, plan.prompt_tokens, 1) for _ in range(plan.rounds)]
        rates = {count: [await self._rate(model, count) for _ in range(plan.rounds)] for count in plan.streams}
        prefills = [one.prompt_tokens / one.prefill_s for one in firsts if one.prefill_s]
        shown = view(await self._client.get(model_path(model)), ModelView)
        return Figures(
            model,
            _rounded(load_s),
            firsts[-1].prompt_tokens,
            _rounded(statistics.median(one.first - one.asked for one in firsts)),
            _rounded(statistics.median(prefills)) if prefills else None,
            {count: round(statistics.median(each), 1) for count, each in rates.items()},
            shown.resident_bytes,
        )

    async def swap(self, model: str, before: str) -> Swap:
        """Ask for one model right after another one. Raises NotReachable."""
        try:
            await self._ask(before, 8, 1)
            is_there = view(await self._client.get(model_path(model)), ModelView).is_in_memory()
            answer = await self._ask(model, 8, 1)
        except NotReachable:
            raise
        except CommandFailed as failure:
            return Swap(model, before, error=failure.message.splitlines()[0])
        return Swap(model, before, round(answer.first - answer.asked, 4), not is_there)

    async def _rate(self, model: str, count: int) -> float:
        asking = [asyncio.create_task(self._ask(model, 16, self._plan.tokens)) for _ in range(count)]
        try:
            answers = await asyncio.gather(*asking)
        finally:  # when one fails, the others must not go on beside the next model
            for each in asking:
                each.cancel()
            await asyncio.wait(asking)
        began, ended = min(one.first for one in answers), max(one.last for one in answers)
        # each answer's first token is where the clock starts
        tokens = sum(one.tokens for one in answers) - count
        return tokens / (ended - began) if ended > began else 0.0

    async def _ask(self, model: str, prompt_tokens: int, tokens: int) -> Answer:
        """One answer to a prompt that nobody has asked before."""
        words = itertools.islice(itertools.cycle(_WORDS), max(1, prompt_tokens - _NONCE_TOKENS))
        prompt = " ".join([secrets.token_hex(8), *words])
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        asked = time.monotonic()
        moments, last = [], Chunk()
        url = self._client.url
        async with self._client.stream(_PATH, body) as stream, aclosing(answer_chunks(stream, url)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Chunk):
                    moments.append(time.monotonic())
                    last = chunk
        if last.usage is None:
            raise CommandFailed(f"{url} did not count the tokens of an answer; is that mlxd?")
        used = last.usage
        return Answer(asked, moments[0], moments[-1], used.prompt_tokens, used.completion_tokens, last.mlxd.prefill_s)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
