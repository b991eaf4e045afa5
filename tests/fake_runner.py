"""A programmable ModelRunner: it recites, and fails or holds where it is told to. No MLX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from mlxd.engines.backend import Admitted, NewRow, RunnerStep, TextPiece, TokenEvent
from mlxd.engines.memory_share import Stake
from mlxd.engines.prompt_price import PromptPrice, RowNeed
from mlxd.engines.types import EngineLimits, ModelInfo, Request


class FakeText:
    """Token n is the text "n "."""

    stopped = False
    stop = None

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
    spared: list[tuple[int, ...]] = field(default_factory=list)

    def use_headroom(self, headroom: Callable[[], int | None]) -> None:
        """There is no need of it."""

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        return self.cached.get(tuple(prompt), 0)

    def shared_tokens(self, prompt: Sequence[int], other: Sequence[int]) -> int:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, other, strict=False))
        return len(list(same)) if self.shares else 0

    def trim(self, max_bytes: int, sparing: Sequence[int] = ()) -> int:
        self.spared.append(tuple(sparing))
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
    token_bytes: int = 10
    chunk_bytes: int = 0
    demanded: list[tuple[RowNeed | None, int]] = field(default_factory=list)
    is_full: bool = False
    growth: int = 0
    price: PromptPrice = field(default_factory=PromptPrice)
    prompts: dict[int, int] = field(default_factory=dict)
    inserted: list[NewRow] = field(default_factory=list)
    slowed: list[int | None] = field(default_factory=list)
    retuned: list[EngineLimits] = field(default_factory=list)

    def settle(self) -> None:
        """Nothing is left undone here."""

    has_finished = False

    def keep_finished(self) -> None:
        """Nothing is kept here."""

    def retune(self, limits: EngineLimits) -> None:
        self.retuned.append(limits)

    def slow_down(self, chunk: int | None) -> None:
        self.slowed.append(chunk)

    def share(self, stake: Stake) -> Stake:
        return stake

    def demand(self, more: RowNeed | None, chunk: int) -> int:
        """Ten bytes a token of each prompt that has not decoded yet, and what a test says for growth and for each token
        of a chunk.
        """
        self.demanded.append((more, chunk))
        prompts = [self.prompts[uid] for uid, row in self.rows.items() if row[0] == row[2]]
        tokens = sum(prompts) + (more.prompt if more is not None else 0)
        passing = self.chunk_bytes * chunk if more is not None else 0
        return self.token_bytes * tokens + passing + (self.growth if self.is_full else 0)

    def insert(self, row: NewRow) -> Admitted:
        self.fail_insert(row.request)
        self.next_uid += 1
        self.inserted.append(row)
        self.rows[self.next_uid] = [row.drawn, row.drawn + row.left, row.drawn]
        self.prompts[self.next_uid] = len(row.tokens)
        return Admitted(self.next_uid, self.prefixes.cached_tokens(row.tokens))

    def text_stream(self, request: Request) -> FakeText:
        return FakeText()

    def remove(self, uids: Iterable[int], *, keep: bool = True) -> None:
        for uid in uids:
            self.rows.pop(uid, None)

    def step(self) -> RunnerStep:
        self.fail()
        tokens = []
        for uid, row in list(self.rows.items()):
            token, limit, _ = row
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
