"""What the daemon has a worker's tokenizer do, each call on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from mlxd.engines.encoder_tokenizer import EncoderTokenizer
from mlxd.engines.errors import EngineError, InvalidRequest
from mlxd.engines.guidance import check_guide
from mlxd.engines.guide_tools import guide_for_tools
from mlxd.engines.prompt_images import ImageInput, PromptImages
from mlxd.engines.stoppable import StoppableThreads, StoppableWork, Stopped
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide, GuideKind
from mlxd.engines.worker.channel import Channel
from mlxd.engines.worker.error_forms import form_of
from mlxd.engines.worker.frames import from_json, text_to_bytes, to_bytes
from mlxd.engines.worker.held import Held
from mlxd.engines.worker.image_outlines import outline_of
from mlxd.engines.worker.to_daemon import Reply, TokenizerFacts
from mlxd.engines.worker.to_worker import Call

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gives: `value` crosses, `kept` stays here under a number; of images their outline crosses."""

    value: Any = None
    kept: Any = None


class TokenizerCalls:
    """`make` and `stop` are for the thread that reads messages; `tokenizer` is set once the model is loaded."""

    def __init__(self, channel: Channel, held: Held) -> None:
        self.tokenizer: Tokenizer | None = None
        self._channel = channel
        self._held = held
        self._lock = threading.Lock()
        self._running: dict[int, StoppableWork[Result]] = {}
        self._threads = StoppableThreads("tokenizer")
        self._methods: Mapping[str, Callable[..., Any]] = {
            "encode": self._encode,
            "encode_prompt": self._encode_prompt,
            "render_chat": self._render_chat,
            "template_reads": self._template_reads,
            "check_guide": self._check_guide,
            "guide_for_tools": self._guide_for_tools,
            "inputs": self._inputs,
            "pairs": self._pairs,
        }

    def make(self, call: Call) -> None:
        """Start a call; its Reply is sent when it is done."""
        try:
            with self._lock:
                self._running[call.number] = self._threads.start(
                    lambda: self._result(call), lambda result: self._reply(call.number, result)
                )
        except RuntimeError as error:  # there are too many threads
            self._fail(call.number, error)

    def stop(self, number: int) -> None:
        """Nobody waits for a call any more."""
        with self._lock:
            running = self._running.get(number)
        if running is not None:
            running.stop()

    def _reply(self, number: int, result: Future[Result]) -> None:
        with self._lock:
            self._running.pop(number, None)
        error = result.exception()
        if error is not None:
            self._fail(number, error)
            return
        # only now: whoever is stopped keeps nothing
        kept = result.result().kept
        held = None if kept is None else self._held.hold(kept)
        images = outline_of(kept) if isinstance(kept, PromptImages) else None
        try:
            self._channel.send(Reply(number, result.result().value, images, held))
        except ValueError as unsendable:
            self._held.drop(held or 0)
            self._fail(number, unsendable)

    def _fail(self, number: int, error: BaseException) -> None:
        if not isinstance(error, EngineError | Stopped):
            log.error("worker.call_broke", exc_info=error)
        self._channel.send(Reply(number, error=form_of(error)))

    def _result(self, call: Call) -> Result:
        value = self._methods[call.method](*from_json(call.arguments), *([call.files] if call.files else []))
        return value if isinstance(value, Result) else Result(value)

    @property
    def _own(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequest("the model is not loaded")
        return self.tokenizer

    @property
    def _encoder(self) -> EncoderTokenizer:
        assert isinstance(self.tokenizer, EncoderTokenizer), "the daemon knows what kind of model this is"
        return self.tokenizer

    def _encode(self, text: str, special: bool) -> bytes:
        return to_bytes(self._own.encode(text, special=special))

    def _encode_prompt(
        self,
        messages: list[dict[str, Any]],
        template: Mapping[str, Any] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        places: Sequence[tuple[int, int, str, int]] = (),
        files: Sequence[Path] = (),
    ) -> Result:
        _put_images(messages, places, files)
        encoded = self._own.encode_prompt(messages, template, tools)
        return Result(to_bytes(encoded.tokens), encoded.images)

    def _render_chat(self, *arguments: Any) -> bytes:
        return text_to_bytes(self._own.render_chat(*arguments))

    def _template_reads(self, variable: str) -> bool:
        return self._own.template_reads(variable)

    def _check_guide(self, kind: str, text: str) -> Result:
        return Result(kept=check_guide(self._own, Guide(GuideKind(kind), text)).compiled)

    def _guide_for_tools(
        self, tools: Sequence[Mapping[str, Any]], name: str | None, parallel: bool, form: tuple[str, str] | None
    ) -> list[str]:
        wanted = None if form is None else Guide(GuideKind(form[0]), form[1])
        guide = guide_for_tools(self._own, tools, name, parallel=parallel, form=wanted)
        return [guide.kind.value, guide.text]

    def _inputs(self, texts: Sequence[str], truncate: bool) -> list[tuple[bytes, int]]:
        return [(each.tokens.tobytes(), each.second) for each in self._encoder.inputs(texts, truncate=truncate)]

    def _pairs(self, first: str, seconds: Sequence[str], truncate: bool) -> list[tuple[bytes, int]]:
        pairs = self._encoder.pairs(first, seconds, truncate=truncate)
        return [(each.tokens.tobytes(), each.second) for each in pairs]


def facts_of(tokenizer: Tokenizer) -> TokenizerFacts:
    """What never changes of a tokenizer."""
    return TokenizerFacts(
        sorted(tokenizer.end_tokens),
        tokenizer.size,
        tokenizer.has_chat_template,
        tokenizer.has_tools,
        tokenizer.tool_markers,
        tokenizer.has_reasoning,
        tokenizer.takes_images,
        isinstance(tokenizer, EncoderTokenizer),
    )


def _put_images(
    messages: list[dict[str, Any]], places: Sequence[tuple[int, int, str, int]], files: Sequence[Path]
) -> None:
    """Put the images of files into the parts of messages that are their places."""
    for file, (message, part, param, max_pixels) in zip(files, places, strict=True):
        messages[message]["content"][part]["image"] = ImageInput(file.read_bytes(), param, max_pixels)
