"""Vision models whose rows cannot be batched, and a lane to run their rows on by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tiny_vision import SINGLE_IMAGE, png
from vision_harness import EXACT, Message, Reference, said, user

from mlxd.engines import vision_loader
from mlxd.engines.backend import NewRow, mlx_backend
from mlxd.engines.crowd import Crowd
from mlxd.engines.image_threads import ImageThreads
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.turns import Turns
from mlxd.engines.types import EngineConfig, Guide, GuideKind, Request, SamplingParams

BATCHED_ELSEWHERE = "qwen3_5"
OPTIONS: dict[str, Any] = {"vision": True, "prefill_chunk": 16, "max_stall": None, "prefix_cache_bytes": 2**26}
# The first two read a prompt, or the images in it, in both directions; the next looks at its image beside the sequence.
# The last could be batched: here it stands for those that keep positions of the last prompt in themselves.
FAMILIES: dict[str, dict[str, Any]] = {
    "paligemma": {},
    "gemma4": {"text_config": {"use_bidirectional_attention": "vision"}},
    "mllama": {},
    "qwen3_5": {},
}
FIRST, SECOND = png("first", (60, 80)), png("second", (150, 60))
LONG = "Say it once more, in other words than before, and slowly. " * 2
CHATS: dict[str, list[Message]] = {
    "text": [user("What is the capital of France?")],
    "one image": [user(FIRST, "What is here?")],
    "a long text": [user(LONG)],
    "a long text with an image": [user(SECOND, LONG)],
    "image in history": [user(FIRST, "What is here?"), said("A tree."), user("Say it once more.")],
    "two images": [user(FIRST, SECOND, "Compare.")],
}
SAMPLINGS = {
    "greedy": EXACT,
    "seeded": replace(EXACT, temperature=1.0, seed=11, top_p=0.9),
    "penalties": replace(EXACT, repetition_penalty=1.4, presence_penalty=0.4, logit_bias={40: 3.0}),
    "guided": replace(EXACT, temperature=1.0, seed=3, guide=Guide(GuideKind.REGEX, "(ab|cd){300}")),
}


def chats_of(family: str) -> dict[str, list[Message]]:
    return {name: chat for name, chat in CHATS.items() if name != "two images" or family not in SINGLE_IMAGE}


@contextmanager
def none_batched() -> Iterator[None]:
    """None of `FAMILIES` is batched meanwhile."""
    is_batched = vision_loader.is_batched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vision_loader, "is_batched", lambda *model: BATCHED_ELSEWHERE not in model and is_batched(*model))
        yield


class Rendered(Reference):
    """mlx-vlm, given the text of a chat: its own way to write one leaves out history for some families."""

    def __init__(self, path: Path, tokenizer: Any) -> None:
        super().__init__(path)
        self._tokenizer = tokenizer

    def prompt(self, messages: Sequence[Message]) -> str:
        return self._tokenizer.render_chat(messages)


def loaded(stack: ExitStack, path: Path) -> Any:
    """A runner, on the lane that this thread then is."""
    crowd, backend, images = Crowd(), mlx_backend(), ImageThreads()
    stack.callback(images.close, 10)
    stack.enter_context(backend.lane_scope())
    stack.enter_context(crowd.entered())
    config = EngineConfig(path.name, path, 2048, **OPTIONS)
    runner = backend.load(config, LoadWatch(lambda _: None, lambda: False, crowd, Turns(), images, lambda _: None))
    stack.callback(runner.close)
    return runner


@dataclass(frozen=True)
class Lane:
    """A runner on a thread of its own, and short ways to its rows, for what `run` does there."""

    family: str
    runner: Any
    thread: ThreadPoolExecutor

    def run(self, work: Callable[[], None]) -> None:
        self.thread.submit(work).result()

    def request(self, *chat: Message, sampling: SamplingParams = EXACT) -> Request:
        prompt = self.runner.tokenizer.encode_prompt(chat)
        return Request("r", tuple(prompt.tokens), sampling, images=prompt.images)

    def insert(self, asked: Request, again: Sequence[int] = ()) -> int:
        left = (asked.sampling.max_tokens or 0) - len(again)
        return self.runner.insert(NewRow(asked, (*asked.prompt, *again), left, 16)).uid

    def tokens(self, uid: int, most: int = 1000) -> list[int]:
        """The next tokens of a row, to its end at most."""
        made: list[int] = []
        while len(made) < most:
            step = self.runner.step()
            assert not step.failed
            made += [event.token for event in step.tokens if event.uid == uid]
            if any(event.is_last and event.uid == uid for event in step.tokens):
                break
        return made

    def answer(self, asked: Request) -> list[int]:
        return self.tokens(self.insert(asked))

    @property
    def keeps_nothing(self) -> bool:
        """Whether the model itself has nothing of its last prompt."""
        language = self.runner._vision.language_model
        return all(getattr(language, name, None) is None for name in ("_position_ids", "_rope_deltas"))

    def phase(self, uid: int) -> str:
        row = self.runner._rows[uid]
        if row.drawn is not None:
            return "decoding"
        if row.is_embedded:
            return "in the prompt" if row.sequence.length else "embedded"
        return "waiting" if row.encoding is None else "encoding"
