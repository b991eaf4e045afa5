"""A programmable ModelRunner: it recites, and fails or holds where it is told to. No MLX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from mlxd.engines.backend import Admitted, RunnerStep, TextPiece, TokenEvent
from mlxd.engines.types import EngineLimits, ModelInfo, Request


class FakeText:
    """Token n is the text "n "."""

    stopped = False

    def push(self, token: int) -> TextPiece:
        return TextPiece(f"{token} ")

    def finish(self) -> TextPiece:
        return TextPiece()


@dataclass
class FakePrefixes:
    """Gives what it is told to have; with `shares` prompts share what they begin with."""

    nbytes: int = 0
    changes: int = 0
    cached: dict[tuple[int, ...], int] = field(default_factory=dict)
    shares: bool = False
    on_disk: bool = False
    restoring: list[Callable[[Any], None]] = field(default_factory=list)
    adopted: list[Any] = field(default_factory=list)

    def use_headroom(self, headroom: Callable[[], int | None]) -> None:
        """There is no need of it."""

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        return self.cached.get(tuple(prompt), 0)

    def shared_tokens(self, prompt: Sequence[int], other: Sequence[int]) -> int:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, other, strict=False))
        return len(list(same)) if self.shares else 0

    def trim(self, max_bytes: int) -> int:
        freed = max(0, self.nbytes - max_bytes)
        self.nbytes -= freed
        return freed

    def restore(self, prompt: Sequence[int], done: Callable[[Any], None]) -> bool:
        self.restoring.append(done)
        return self.on_disk

    def adopt(self, restored: Any) -> None:
        self.adopted.append(restored)


@dataclass
class FakeRunner:
    """Every row decodes 0, 1, 2, … one token a step. `fail` is called before a step and may raise."""

    fail: Callable[[], None] = lambda: None
    fail_insert: Callable[[Request], None] = lambda _: None
    rows: dict[int, list[int]] = field(default_factory=dict)
    next_uid: int = 0
    rebuilds: int = 0
    closed: bool = False
    info: ModelInfo = field(default_factory=lambda: ModelInfo(100, 1000))
    tokenizer: object = None
    kv_bytes: int = 0
    short_prompt: int = 64
    draft: None = None
    prefixes: FakePrefixes = field(default_factory=FakePrefixes)
    retuned: list[EngineLimits] = field(default_factory=list)

    def settle(self) -> None:
        """Nothing is left undone here."""

    def retune(self, limits: EngineLimits) -> None:
        self.retuned.append(limits)

    def insert(self, request: Request, max_tokens: int) -> Admitted:
        self.fail_insert(request)
        self.next_uid += 1
        self.rows[self.next_uid] = [0, max_tokens]
        return Admitted(self.next_uid, self.prefixes.cached_tokens(request.prompt))

    def text_stream(self, request: Request) -> FakeText:
        return FakeText()

    def remove(self, uids: Iterable[int], *, keep: bool = True) -> None:
        for uid in uids:
            self.rows.pop(uid, None)

    def step(self) -> RunnerStep:
        self.fail()
        tokens = []
        for uid, row in list(self.rows.items()):
            token, limit = row
            last = token + 1 >= limit
            tokens.append(TokenEvent(uid, token, is_last=last))
            row[0] += 1
            if last:
                del self.rows[uid]
        return RunnerStep(tokens=tuple(tokens))

    def rebuild(self) -> None:
        self.rebuilds += 1
        self.rows.clear()

    def close(self) -> None:
        self.closed = True
