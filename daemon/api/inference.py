"""The core of every facade: from a name and a prompt to a stream of outputs, in one place that gives all back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from itertools import count

import structlog

from mlxd.daemon.api.answer_options import AnswerOptions
from mlxd.daemon.api.images import take_images
from mlxd.daemon.api.interleave import Indexed, interleaved
from mlxd.daemon.api.refusals import InvalidField, RequestNotFound, UnsupportedCapability
from mlxd.daemon.api.running import Interrupted, LiveRequest
from mlxd.daemon.api.sampling import for_choice, sampling_params
from mlxd.daemon.api.sent_images import SentImage
from mlxd.daemon.api.services import Services
from mlxd.daemon.api.transcript import Transcript
from mlxd.engines.engine import Engine
from mlxd.engines.errors import ContextLengthExceeded, GuideError, InvalidRequest
from mlxd.engines.generation import Generation
from mlxd.engines.prompt_images import ImageInput, PromptImages
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import (
    ChatFormat,
    EngineConfig,
    FinishReason,
    Guide,
    Request,
    RequestOutput,
    Timing,
    Usage,
)
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.lease import Lease
from mlxd.registry.names import Resolved
from mlxd.registry.spec import ModelKind

log = structlog.stdlib.get_logger(__name__)

SLOW_TOKENIZE = 1.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a tokeniser thread makes of a request: the token ids of each prompt, the form that answers must have, and
    the images of the first prompt.
    """

    prompts: Sequence[Sequence[int]]
    guide: Guide | None = None
    images: PromptImages | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What a facade wants generated. `prepare` runs on a tokeniser thread, is told the context length and the files of
    `images`, and gives `prompts` prompts; `prompt_param` names its input.

    `max_wait` is seconds for the model, None for the configured bound. `on_lease` is called once the model is held.
    `shown` says what it asks, for a log that is to have it.
    """

    id: str
    api: str
    resolved: Resolved
    options: AnswerOptions
    prepare: Callable[[Tokenizer, int, Sequence[ImageInput]], Prepared]
    images: Sequence[SentImage] = ()
    prompts: int = 1
    prompt_param: str = "messages"
    continues_text: bool = False
    chat: ChatFormat | None = None
    max_wait: float | None = None
    key: str | None = None
    on_lease: Callable[[], None] = lambda: None
    shown: Callable[[], str] = str

    @property
    def choices(self) -> int:
        """How many answers are made: `n` of the first prompt, then `n` of the next."""
        return self.prompts * self.options.n


class Inference:
    """One job. `outputs` may be read once; what is known of the way there is in the other attributes, in seconds."""

    def __init__(self, services: Services, job: Job) -> None:
        self._services = services
        # a reload in the middle must not fill in half of a request
        self._settings = services.settings
        self._job = job
        self._tokenizer: Tokenizer | None = None
        self._transcript = Transcript(job.resolved.model, job.api, wanted=self._settings.log.prompts)
        self.id = job.id
        self.queue_s = 0.0
        self.load_s = 0.0
        self._started = services.clock()
        self._at_engine = self._started

    async def outputs(self) -> AsyncGenerator[Indexed, None]:
        """The outputs with their choice's number, up to one with a finish reason for each choice. Closing the
        generator ends the request and its lease.

        Raises the errors of the registry and of engines, InvalidField and UnsupportedCapability.
        """
        job = self._job
        async with AsyncExitStack() as held:
            live = self._track(held)
            try:
                engine, requests = await self._begin(live, held)
            except Interrupted:
                for choice in range(job.choices):
                    yield choice, _cancelled(live)
                return
            # Entering never waits: all of them are admitted, or none.
            generations = [await held.enter_async_context(self._generate(engine, request)) for request in requests]
            live.admit(engine, len(requests))
            self._at_engine = self._services.clock()
            outputs = await held.enter_async_context(aclosing(interleaved(generations)))
            held.enter_context(_naming_the_form(job.options))
            traffic = self._services.metrics.traffic.answer(job.resolved.model)
            async for choice, output in outputs:
                self._transcript.take(choice, output)
                live.generated_tokens += traffic.take(choice, output, own_prompt=choice % job.options.n == 0)
                if output.finish_reason is not None:
                    self._end_one(live, output)
                yield choice, output

    async def tokens(self) -> Sequence[Sequence[int]]:
        """The token ids of each prompt, with nothing generated. Raises what `outputs` raises, and RequestNotFound."""
        async with AsyncExitStack() as held:
            try:
                _, prepared = await self._admit(self._track(held), held)
            except Interrupted:
                raise RequestNotFound("the request was cancelled") from None
            return prepared.prompts

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a generated token's text."""
        assert self._tokenizer is not None, "tokens are generated only after the prompt was made into tokens"
        return self._tokenizer.token_bytes(token)

    def ttft_s(self, timing: Timing) -> float | None:
        """Seconds from the arrival of the request to its first token."""
        return None if timing.ttft_s is None else self._at_engine - self._started + timing.ttft_s

    def progress(self) -> str:
        """What the request waits for, in a few words."""
        try:
            load = self._services.registry.model(self._job.resolved.model).load
        except ModelRemoved:  # the refusal is on its way
            load = None
        if load is None:
            return "waiting"
        done, total = load.progress.bytes_done, load.progress.bytes_total
        eta = f" eta {load.eta_s:.0f}s" if load.eta_s is not None else ""
        return f"loading {min(100, 100 * done // total) if total else 0}%{eta}"

    def _end_one(self, live: LiveRequest, output: RequestOutput) -> None:
        live.end_one(output.usage.completion_tokens)
        if not output.cancelled:
            self._services.metrics.traffic.timed(self.ttft_s(output.timing), output.timing)

    def _track(self, held: AsyncExitStack) -> LiveRequest:
        job = self._job
        live = held.enter_context(self._services.running.track(job.id, job.resolved.model, job.api, job.key))
        self.id = live.id
        return live

    async def _begin(self, live: LiveRequest, held: AsyncExitStack) -> tuple[Engine, list[Request]]:
        """Everything that comes before the engine. Raises Interrupted when the request was cancelled on the way."""
        engine, prepared = await self._admit(live, held)
        requests = list(self._requests(engine, live, prepared))
        async with live.interruptible():
            await held.enter_async_context(self._services.at_work(self._job.resolved.model, requests))
        return engine, requests

    async def _admit(self, live: LiveRequest, held: AsyncExitStack) -> tuple[Engine, Prepared]:
        """Read the images, lease the model and make the tokens. Raises Interrupted."""
        job = self._job
        _check_kind(self._services, job.resolved.model)
        async with live.interruptible():
            images = await take_images(
                self._services, self._settings, job.images, live=live, held=held, max_wait=job.max_wait
            )
            lease = await held.enter_async_context(
                self._services.registry.lease(
                    job.resolved.model, request_id=live.id, max_wait=job.max_wait, key=job.key
                )
            )
            self.queue_s, self.load_s = lease.queue_s, lease.load_s
            self._services.metrics.traffic.queued(lease.queue_s)
            job.on_lease()
            self._transcript.prompt(job.shown)
            _check_choices(job, lease.engine.config)
            live.tokenize()
            prepared = await self._prepare(lease, images.files)
            images.claim.resize(prepared.images.nbytes if prepared.images is not None else 0)
        self._tokenizer = lease.engine.tokenizer
        live.prompt_tokens = sum(map(len, prepared.prompts))
        return lease.engine, prepared

    async def _prepare(self, lease: Lease, images: Sequence[ImageInput]) -> Prepared:
        def prepare() -> tuple[Prepared, float]:
            started = self._services.clock()
            prepared = self._job.prepare(lease.engine.tokenizer, lease.engine.config.context_length, images)
            return prepared, self._services.clock() - started

        try:
            prepared, seconds = await self._services.tokenizers.run(lease.spec.name, prepare)
        except ContextLengthExceeded as error:
            error.param = self._job.prompt_param
            raise
        except InvalidRequest as error:
            places = {image.param for image in self._job.images}
            raise InvalidField(str(error), error.param if error.param in places else self._job.prompt_param) from error
        if seconds > SLOW_TOKENIZE:
            tokens = sum(map(len, prepared.prompts))
            log.warning("tokenize.slow", model=lease.spec.name, seconds=round(seconds, 3), tokens=tokens)
        return prepared

    def _generate(self, engine: Engine, request: Request) -> Generation:
        try:
            return engine.generate(request)
        except InvalidRequest as error:
            error.param = self._job.prompt_param  # the engine does not know what its prompt was called
            raise

    def _requests(self, engine: Engine, live: LiveRequest, prepared: Prepared) -> Iterator[Request]:
        job, vocab_size = self._job, engine.info.vocab_size
        _check_ids(job.options.logit_bias, vocab_size, "logit_bias")
        places, alone = count(), job.choices == 1 and not self._services.running.others_come(live)
        for number, prompt in enumerate(prepared.prompts):
            param = job.prompt_param if job.prompts == 1 else f"{job.prompt_param}[{number}]"
            if not prompt:
                raise InvalidField(f"{param}: there is nothing in it to go on from", param)
            if prepared.images is None:  # what stands for an image may be beyond the vocabulary
                _check_ids(prompt, vocab_size, param)
            tokens = tuple(prompt)
            room = engine.config.context_length - len(tokens)
            sampling = sampling_params(self._settings, job.resolved, job.options, room, prepared.guide)
            for choice in range(job.options.n):
                yield Request(
                    live.sequence_id(next(places)),
                    tokens,
                    for_choice(sampling, choice),
                    job.continues_text,
                    job.chat,
                    prepared.images if number == 0 else None,
                    alone,
                )


@contextmanager
def _naming_the_form(options: AnswerOptions) -> Iterator[None]:
    """An engine does not know which field asked for a form."""
    try:
        yield
    except GuideError as error:
        error.param = options.guide.param if options.guide is not None else "tool_choice"
        raise


def _check_kind(services: Services, model: str) -> None:
    if services.registry.spec(model).kind is ModelKind.EMBEDDING:
        raise UnsupportedCapability(f"model {model} makes embeddings and generates no text", "model")


def _check_choices(job: Job, config: EngineConfig) -> None:
    """Refuse more answers than the engine ever takes at a time, which would be told to retry for ever."""
    most = config.max_running + config.max_waiting
    if job.choices > most:
        param = "n" if job.options.n > 1 else job.prompt_param
        raise InvalidField(f"{param}: this model takes at most {most} sequences at a time; ask for fewer", param)


def _check_ids(ids: Collection[int], vocab_size: int, param: str) -> None:
    highest = max(ids, default=0)
    if highest >= vocab_size or min(ids, default=0) < 0:
        raise InvalidField(f"{param}: expected token ids from 0 to {vocab_size - 1}", param)


def _cancelled(live: LiveRequest) -> RequestOutput:
    return RequestOutput("", Usage(live.prompt_tokens), finish_reason=FinishReason.STOP, cancelled=True)
