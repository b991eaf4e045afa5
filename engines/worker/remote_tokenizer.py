"""The tokenizer of a model in a worker. What takes a while is done there; use it on any thread but the event loop's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxd.engines.call_parser import CallParser
from mlxd.engines.embedding_types import EncoderInput
from mlxd.engines.encoder_tokenizer import EncoderTokenizer
from mlxd.engines.errors import DiskFull
from mlxd.engines.prompt_images import EncodedPrompt, ImageInput
from mlxd.engines.tokenizer import GuideKeeper, Messages, Tokenizer, Tools
from mlxd.engines.types import Guide, GuideKind
from mlxd.engines.worker.calls import Calls
from mlxd.engines.worker.frames import from_bytes, text_from_bytes
from mlxd.engines.worker.image_outlines import outlined
from mlxd.engines.worker.to_daemon import TokenizerFacts


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an image stands in messages."""

    message: int
    part: int
    image: ImageInput


class RemoteTokenizer(Tokenizer, GuideKeeper):
    """As Tokenizer; images cross in files of the folder `scratch`."""

    def __init__(self, calls: Calls, facts: TokenizerFacts, scratch: Path) -> None:
        super().__init__(None)
        self._calls = calls
        self._facts = facts
        self._scratch = scratch
        self._texts: dict[int, bytes] = {}
        self._reads: dict[str, bool] = {}

    def learn(self, texts: Mapping[int, bytes]) -> None:
        """The bytes of tokens, of which the worker tells with the first output that has them."""
        self._texts.update(texts)

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset(self._facts.end_tokens)

    @property
    def has_chat_template(self) -> bool:
        return self._facts.has_chat_template

    @property
    def size(self) -> int:
        return self._facts.size

    @property
    def has_tools(self) -> bool:
        return self._facts.has_tools

    @property
    def call_parser(self) -> CallParser | None:
        """Answers are read in the worker."""
        return None

    @property
    def tool_markers(self) -> tuple[str, str] | None:
        return self._facts.tool_markers

    @property
    def has_reasoning(self) -> bool:
        return self._facts.has_reasoning

    @property
    def takes_images(self) -> bool:
        return self._facts.takes_images

    def template_reads(self, variable: str) -> bool:
        if variable not in self._reads:
            self._reads[variable] = bool(self._calls.make("template_reads", variable).value)
        return self._reads[variable]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token that an output had in its logprobs."""
        return self._texts[token]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(from_bytes(self._calls.make("encode", text, special).value))

    def render_chat(
        self, messages: Messages, template: Mapping[str, Any] | None = None, tools: Tools | None = None
    ) -> str:
        return text_from_bytes(self._calls.make("render_chat", messages, template, tools).value)

    def encode_chat(
        self, messages: Messages, template: Mapping[str, Any] | None = None, tools: Tools | None = None
    ) -> list[int]:
        return list(self.encode_prompt(messages, template, tools).tokens)

    def encode_prompt(
        self, messages: Messages, template: Mapping[str, Any] | None = None, tools: Tools | None = None
    ) -> EncodedPrompt:
        places = list(_places(messages))
        told = [(place.message, place.part, place.image.param, place.image.max_pixels) for place in places]
        with self._files(place.image.data for place in places) as files:
            arguments = (_without_images(messages, places), template, tools, told)
            answer = self._calls.make("encode_prompt", *arguments, files=files)
        images = None if answer.images is None else outlined(answer.images, answer.held)
        return EncodedPrompt(list(from_bytes(answer.value)), images)

    def check_guide(self, guide: Guide) -> Guide:
        """As `guidance.check_guide`; what it compiles to is kept in the worker."""
        return Guide(guide.kind, guide.text, self._calls.make("check_guide", guide.kind.value, guide.text).held)

    def guide_for_tools(
        self, tools: Sequence[Mapping[str, Any]], name: str | None, *, parallel: bool, form: Guide | None
    ) -> Guide:
        """As `guide_tools.guide_for_tools`."""
        wanted = None if form is None else (form.kind.value, form.text)
        kind, text = self._calls.make("guide_for_tools", tools, name, parallel, wanted).value
        return Guide(GuideKind(kind), text)

    @contextmanager
    def _files(self, contents: Iterable[bytes]) -> Iterator[list[Path]]:
        """Files that are there meanwhile. Raises DiskFull for a disk that does not take them."""
        contents = list(contents)
        if not contents:
            yield []
            return
        with ExitStack() as meanwhile:
            try:
                folder = Path(meanwhile.enter_context(_folder(self._scratch)))
                files = [folder / str(number) for number in range(len(contents))]
                for file, content in zip(files, contents, strict=True):
                    file.write_bytes(content)
            except OSError as error:
                raise DiskFull(str(self._scratch), error.strerror or str(error)) from error
            yield files


def _folder(within: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=within, ignore_cleanup_errors=True)


class RemoteEncoderTokenizer(EncoderTokenizer):
    """As EncoderTokenizer."""

    def __init__(self, calls: Calls) -> None:
        Tokenizer.__init__(self, None)
        self._calls = calls

    def inputs(self, texts: Sequence[str], *, truncate: bool) -> list[EncoderInput]:
        return _inputs(self._calls.make("inputs", texts, truncate).value)

    def pairs(self, first: str, seconds: Sequence[str], *, truncate: bool) -> list[EncoderInput]:
        return _inputs(self._calls.make("pairs", first, seconds, truncate).value)


def _inputs(value: Sequence[tuple[bytes, int]]) -> list[EncoderInput]:
    return [EncoderInput(from_bytes(tokens), second) for tokens, second in value]


def _places(messages: Messages) -> Iterator[_Place]:
    for number, message in enumerate(messages):
        content = message.get("content")
        for part_number, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, Mapping) and isinstance(part.get("image"), ImageInput):
                yield _Place(number, part_number, part["image"])


def _without_images(messages: Messages, places: Sequence[_Place]) -> list[Any]:
    """The messages with nothing where images are: the worker puts them there again."""
    bare: list[Any] = list(messages)
    for place in places:
        message = dict(bare[place.message])
        content = list(message["content"])
        content[place.part] = {**content[place.part], "image": None}
        message["content"] = content
        bare[place.message] = message
    return bare
