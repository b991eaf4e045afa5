"""The core of the calls that answer with numbers: from a name and texts to what an encoder makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

import structlog
from aiohttp import web

from mlxd.daemon.api.asked_model import max_wait_of, resolve_model
from mlxd.daemon.api.caller import key_of
from mlxd.daemon.api.inference import SLOW_TOKENIZE
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.running import Interrupted, LiveRequest
from mlxd.daemon.api.services import Services
from mlxd.daemon.api.vendor import Vendor
from mlxd.engines.embedding_types import EmbeddingOutput, EmbeddingRequest, EncoderInfo, EncoderInput
from mlxd.engines.encoder_tokenizer import EncoderTokenizer
from mlxd.engines.engine import Engine
from mlxd.engines.errors import InputTooLong, InvalidRequest
from mlxd.registry.lease import Lease
from mlxd.registry.names import Resolved
from mlxd.registry.spec import ModelKind

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for what, whatever the call is. `max_wait` is seconds for the model, None for the configured bound."""

    id: str
    api: str
    resolved: Resolved
    max_wait: float | None = None
    key: str | None = None
    on_lease: Callable[[], None] = lambda: None

    @classmethod
    def of(
        cls, request: web.Request, model: str | None, api: str, on_lease: Callable[[], None] = lambda: None
    ) -> Caller:
        """Raises InvalidField, Forbidden, UnknownModel and AmbiguousModel."""
        resolved = resolve_model(request, model)
        return cls(request_id_of(request), api, resolved, max_wait_of(request), key_of(request), on_lease)


@dataclass(frozen=True, slots=True)
class Encoder:
    """What there is to know of a leased model: ids are below `vocab_size`."""

    tokenizer: EncoderTokenizer
    info: EncoderInfo
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be encoded. `prepare` runs on a tokeniser thread: it checks that the model can do it and gives the
    inputs. `place` names the field of an input by its number; -1 is what stands before all of them.
    """

    prepare: Callable[[Encoder], Sequence[EncoderInput]]
    place: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Encoded:
    """What came out, and of which model. Without `output` the request was cancelled before its engine had it."""

    info: EncoderInfo | None
    output: EmbeddingOutput | None
    queue_s: float
    load_s: float

    @property
    def vectors(self) -> tuple[bytes | None, ...]:
        """For each input its numbers as little-endian float32; None where it was cancelled before."""
        return self.output.vectors if self.output is not None else ()

    @property
    def prompt_tokens(self) -> int:
        return self.output.prompt_tokens if self.output is not None else 0

    @property
    def vendor(self) -> Vendor:
        """How the answer came about."""
        output = self.output
        prefill = None if output is None or output.cancelled else round(output.seconds, 4)
        cancelled = output is None or output.cancelled
        return Vendor(round(self.queue_s, 4), round(self.load_s, 4), prefill, None, None, cancelled)


async def encode(services: Services, caller: Caller, task: Task) -> Encoded:
    """Lease the model, make the tokens, and wait for the numbers. Whoever is cancelled while it waits gives all back.

    Raises the errors of the registry and of engines, InvalidField and UnsupportedCapability.
    """
    queue_s = load_s = 0.0
    async with AsyncExitStack() as held:
        name = caller.resolved.model
        live = held.enter_context(services.running.track(caller.id, name, caller.api, caller.key))
        if services.registry.spec(name).kind is not ModelKind.EMBEDDING:
            raise _no_encoder(name)
        try:
            async with live.interruptible():
                lease = await held.enter_async_context(
                    services.registry.lease(name, request_id=live.id, max_wait=caller.max_wait, key=caller.key)
                )
                queue_s, load_s = lease.queue_s, lease.load_s
                services.metrics.traffic.queued(queue_s)
                caller.on_lease()
                live.tokenize()
                inputs = await _prepare(services, lease, task)
                live.prompt_tokens = sum(map(len, inputs))
                request = EmbeddingRequest(live.id, tuple(inputs), not services.running.others_come(live))
                await held.enter_async_context(services.at_work(name, (request,)))
        except Interrupted:
            return Encoded(None, None, queue_s, load_s)
        output = await _run(lease.engine, live, request, task, held)
        services.metrics.traffic.counter(name, "prompt").inc(output.prompt_tokens)
        return Encoded(lease.engine.info.encoder, output, queue_s, load_s)


async def _prepare(services: Services, lease: Lease, task: Task) -> Sequence[EncoderInput]:
    encoder = _encoder(lease)
    started = services.clock()
    try:
        inputs = await services.tokenizers.run(lease.spec.name, lambda: task.prepare(encoder))
    except InputTooLong as error:
        raise error.at(task.place(error.number)) from None
    except InvalidRequest as error:
        raise InvalidField(str(error), task.place(0)) from error
    seconds = services.clock() - started
    if seconds > SLOW_TOKENIZE:
        tokens = sum(map(len, inputs))
        log.warning("tokenize.slow", model=lease.spec.name, seconds=round(seconds, 3), tokens=tokens)
    for number, each in enumerate(inputs):
        if not len(each):
            raise InvalidField(f"{task.place(number)}: there is nothing in it", task.place(number))
    return inputs


def _encoder(lease: Lease) -> Encoder:
    tokenizer, info = lease.engine.tokenizer, lease.engine.info
    if not isinstance(tokenizer, EncoderTokenizer) or info.encoder is None:
        raise _no_encoder(lease.spec.name)
    return Encoder(tokenizer, info.encoder, info.vocab_size)


def _no_encoder(model: str) -> UnsupportedCapability:
    return UnsupportedCapability(f"model {model} generates text and makes no embeddings", "model")


async def _run(
    engine: Engine, live: LiveRequest, request: EmbeddingRequest, task: Task, held: AsyncExitStack
) -> EmbeddingOutput:
    try:
        embedding = await held.enter_async_context(engine.embed(request))
    except InputTooLong as error:
        raise error.at(task.place(error.number)) from None
    live.admit(engine, 1)
    output = await embedding.output()
    live.end_one(0)
    return output
