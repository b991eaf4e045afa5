"""Vision models asked by this project's engine and by mlx-vlm itself, for the same chats."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mlxd.engines.core import EngineCore
from mlxd.engines.prompt_images import ImageInput, PreparedImage
from mlxd.engines.types import Request, RequestOutput, SamplingParams

# The ids of an answer's tokens come with their logprobs.
EXACT = SamplingParams(max_tokens=6, temperature=0, logprobs=0, ignore_eos=True)
PLENTY = 64 * 2**20
MOST_PIXELS = 10**6
Message = dict[str, Any]

_ids = count(1)


def user(*parts: str | bytes, role: str = "user") -> Message:
    """A message of texts and image files, in their order; one text alone stands as a string."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return {"role": role, "content": parts[0]}
    return {"role": role, "content": [_part(number, part) for number, part in enumerate(parts)]}


def said(text: str) -> Message:
    """An answer in the history of a chat."""
    return {"role": "assistant", "content": text}


def _part(number: int, part: str | bytes) -> Message:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "image": ImageInput(part, f"messages[0].content[{number}]", MOST_PIXELS)}


def request(engine: EngineCore, *messages: Message, sampling: SamplingParams = EXACT, **template: Any) -> Request:
    """The request of a chat."""
    prompt = engine.tokenizer.encode_prompt(messages, template)
    return Request(f"v{next(_ids)}", tuple(prompt.tokens), sampling, images=prompt.images)


async def outputs_of(engine: EngineCore, asked: Request) -> list[RequestOutput]:
    async with engine.generate(asked) as outputs:
        return [output async for output in outputs]


def tokens_in(outputs: Iterable[RequestOutput]) -> list[int]:
    """The ids of an answer's tokens."""
    return [one.token for output in outputs for one in output.logprobs]


async def ask(engine: EngineCore, *messages: Message, **options: Any) -> list[int]:
    """The tokens of an answer; options as `request` has them."""
    return tokens_in(await outputs_of(engine, request(engine, *messages, **options)))


async def ask_all(engine: EngineCore, chats: Iterable[Sequence[Message]], **options: Any) -> list[list[int]]:
    """The answers to chats that come at once."""
    return await asyncio.gather(*[ask(engine, *messages, **options) for messages in chats])


class Reference:
    """mlx-vlm's own model and processor in a folder, each asked as its users do."""

    def __init__(self, path: Path) -> None:
        from mlx_vlm import load

        self.model, self.processor = load(str(path))
        # mlx-vlm has a template of its own for InternVL, whatever the folder has
        self.processor.chat_template = (path / "chat_template.jinja").read_text()

    def prompt(self, messages: Sequence[Message]) -> str:
        """The chat as mlx-vlm writes it."""
        from mlx_vlm.prompt_utils import apply_chat_template

        plain = [{**message, "content": _without_files(message["content"])} for message in messages]
        return apply_chat_template(self.processor, self.model.config, plain)

    def answer(self, *messages: Message, max_tokens: int = EXACT.max_tokens) -> tuple[int, list[int]]:
        """How many tokens the prompt has, and the greedy answer's tokens."""
        from mlx_vlm.generate import stream_generate

        pictures = [decoded(part["image"].data) for message in messages for part in _images(message)]
        ask = partial(stream_generate, self.model, self.processor, self.prompt(messages))
        results = list(ask(image=pictures or None, max_tokens=max_tokens, temperature=0.0))[:max_tokens]
        return results[0].prompt_tokens, [result.token for result in results]


def file_of(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as a file of that kind; options are Pillow's."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB")


def _images(message: Message) -> list[Mapping[str, Any]]:
    content = message["content"]
    return [part for part in content if part["type"] == "image"] if isinstance(content, list) else []


def _without_files(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [{"type": "image"} if part["type"] == "image" else part for part in content]


@dataclass
class Encodings:
    """The digests of images that encoders began with. One whose digest is in `broken` raises; while `held` is clear
    every one waits, after it has said so in `waits`.
    """

    begun: list[bytes] = field(default_factory=list)
    broken: set[bytes] = field(default_factory=set)
    held: threading.Event = field(default_factory=threading.Event)
    waits: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.held.set()

    def __len__(self) -> int:
        return len(self.begun)

    def begin(self, image: PreparedImage) -> None:
        self.begun.append(image.digest)
        if not self.held.is_set():
            self.waits.set()
            assert self.held.wait(60)
        if image.digest in self.broken:
            raise RuntimeError("no memory for this image")

    async def until_held(self) -> None:
        """Wait until an encoder waits."""
        assert await asyncio.to_thread(self.waits.wait, 20)


@contextmanager
def watched_encodings() -> Iterator[Encodings]:
    """What all encoders do from now on; a model's own trial at its load is among it."""
    from mlxd.engines.vision_encoder import ImageEncoder

    encodings, features = Encodings(), ImageEncoder.features

    def watched(encoder: ImageEncoder, image: PreparedImage) -> Any:
        encodings.begin(image)
        return features(encoder, image)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageEncoder, "features", watched)
        try:
            yield encodings
        finally:
            encodings.held.set()


@contextmanager
def held_step(number: int) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Two events: the model's step of that number, from 1 on, sets the first and then waits for the other."""
    from mlxd.engines.vision_model import VisionLanguage

    began, may_go_on, steps, step = threading.Event(), threading.Event(), count(1), VisionLanguage.__call__

    def watched(model: VisionLanguage, *arguments: Any, **options: Any) -> Any:
        if next(steps) == number:
            began.set()
            assert may_go_on.wait(60)
        return step(model, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VisionLanguage, "__call__", watched)
        try:
            yield began, may_go_on
        finally:
            may_go_on.set()
