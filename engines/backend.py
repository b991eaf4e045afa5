"""What an engine needs of the machinery below it. The MLX one is imported only when a lane first needs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

from msgspec import Struct

from mlxd.engines.blas_preload import preload_blas
from mlxd.engines.embedding_types import EncoderInput
from mlxd.engines.lasting_imports import lasting_imports
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.memory_share import Stake
from mlxd.engines.prompt_price import PromptPrice, RowNeed
from mlxd.engines.token_arrays import Prompt, Tokens, token_array
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.transients import Transients
from mlxd.engines.types import (
    DraftStats,
    EngineConfig,
    EngineLimits,
    ModelInfo,
    Request,
    TokenLogprobs,
    ToolCall,
)


@dataclass(frozen=True, slots=True)
class NewRow:
    """A sequence on its way into the batch: `tokens` are its prompt and what was generated of it before, `left` is how
    many more it may have. A step processes at most `chunk` of them.
    """

    request: Request
    tokens: tuple[int, ...]
    left: int
    chunk: int

    @property
    def keys(self) -> Tokens:
        """`tokens` as kept prefixes know them."""
        tokens, images = token_array(self.tokens), self.request.images
        return tokens if images is None else images.keyed(tokens)

    @property
    def drawn(self) -> int:
        """Tokens that were generated before."""
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A row in the batch, and how many tokens of its prompt the prefix cache gave."""

    uid: int
    cached_tokens: int = 0


class TokenEvent(Struct, frozen=True):
    """One decoded token of row `uid`; `is_end` for an end token, `is_last` when the row has left the batch."""

    uid: int
    token: int
    is_end: bool = False
    is_last: bool = False
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class RunnerStep:
    """What one step did: decoded tokens, in order for each row, and the rows that had to be dropped, with why."""

    tokens: tuple[TokenEvent, ...] = ()
    failed: tuple[tuple[int, Exception], ...] = ()


class TextPiece(Struct, frozen=True):
    """What became safe to show: text, reasoning and complete calls. False when there is nothing."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.tool_calls)

    def __add__(self, later: TextPiece) -> TextPiece:
        return TextPiece(self.text + later.text, self.reasoning + later.reasoning, self.tool_calls + later.tool_calls)


class TextStream(Protocol):
    """One sequence's text: tokens in, text out; stop strings, markers and incomplete characters are held back."""

    @property
    def stopped(self) -> bool:
        """True once a stop string or the last allowed call was seen; nothing after it is ever given out."""

    @property
    def stop(self) -> str | None:
        """The stop string that was seen."""

    def push(self, token: int) -> TextPiece:
        """Decode one token; what became safe to show."""

    def finish(self) -> TextPiece:
        """What is left at the end of the sequence."""


class Prefixes(Protocol):
    """What a runner keeps of processed prompts, for prompts that begin the same way. Sizes in bytes."""

    @property
    def nbytes(self) -> int: ...

    @property
    def changes(self) -> int:
        """Changes whenever `cached_tokens` may have another answer."""

    def use_headroom(self, headroom: Callable[[], int | None]) -> None:
        """Keep no more than `headroom` has; None for no limit."""

    def cached_tokens(self, prompt: Prompt) -> int:
        """How many tokens of a prompt need not be processed again."""

    def shared_tokens(self, prompt: Prompt, other: Prompt) -> int:
        """How many tokens of `prompt` the cache of `other` will give once it is processed; 0 if it is not kept."""

    def trim(self, max_bytes: int, sparing: Prompt = ()) -> int:
        """Keep at most so many bytes; the bytes that are free now. What the prompt `sparing` begins with is kept."""

    def restore(self, prompt: Prompt, done: Callable[[Any], None]) -> bool:
        """Begin to read what is on the disk for a prompt, if that is more than what is in memory.

        `done` is then called once, on another thread, with what `adopt` takes.
        """

    def adopt(self, restored: Any) -> None:
        """Keep what was read."""


class ModelRunner(Protocol):
    """A loaded model and its batch. Every call happens on the engine's lane."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache that the batch holds now."""

    @property
    def prefixes(self) -> Prefixes:
        """What is kept of processed prompts."""

    @property
    def draft(self) -> DraftStats | None:
        """What speculative decoding has done; None without it."""

    @property
    def short_prompt(self) -> int:
        """Tokens of the longest prompt that one step of its own would process."""

    @property
    def price(self) -> PromptPrice:
        """What prompts of this model take; it gets more exact while it runs."""

    @property
    def is_full(self) -> bool:
        """Whether the next step needs longer buffers."""

    def share(self, stake: Stake) -> Stake:
        """What its prompts are counted in: `stake`, or what bounds it further."""

    def demand(self, more: RowNeed | None, chunk: int) -> int:
        """Bytes that the batch will take beyond what it holds, with one more row in it."""

    @property
    def has_finished(self) -> bool:
        """Whether there is something for `keep_finished`."""

    def keep_finished(self) -> None:
        """Keep the prefixes of rows that the last step ended; called when their readers have been told."""

    def retune(self, limits: EngineLimits) -> None:
        """Other prefill chunks from the next step on; every row goes on."""

    def slow_down(self, chunk: int | None) -> None:
        """Take prompts in chunks of at most so many tokens, None for as usual."""

    def insert(self, row: NewRow) -> Admitted:
        """Add a row, however many there are: what bounds them is Admission."""

    def text_stream(self, request: Request) -> TextStream:
        """A fresh text stream for one request."""

    def remove(self, uids: Iterable[int], *, keep: bool = True) -> None:
        """Drop rows; unknown uids are ignored. With `keep` the prefix cache may keep their KV."""

    def settle(self) -> None:
        """Free the memory of removed rows now, rather than with the next step."""

    def step(self) -> RunnerStep:
        """Decode one token for each running row, then prefill one chunk."""

    def rebuild(self) -> None:
        """Drop every row and start with an empty batch, after a step that raised."""

    def close(self) -> None:
        """Drop the batch and the model."""


class EncoderRunner(Protocol):
    """A loaded encoder. Every call happens on the engine's lane."""

    @property
    def info(self) -> ModelInfo:
        """With its `encoder`."""

    @property
    def tokenizer(self) -> Tokenizer:
        """An EncoderTokenizer."""

    @property
    def transients(self) -> Transients:
        """What batches of this model take; it gets more exact while it runs."""

    def run(self, inputs: Sequence[EncoderInput]) -> tuple[bytes | None, ...]:
        """One padded batch: for each input its numbers as little-endian float32, None where they are not finite."""

    def close(self) -> None:
        """Drop the model."""


class Backend(Protocol):
    """The MLX side of a lane. Every call happens on the lane's own thread."""

    def lane_scope(self) -> AbstractContextManager[None]:
        """Hold this thread's stream; leaving the scope is the thread's last use of the backend."""

    @property
    def shares_processor(self) -> bool:
        """Whether models compute where they are loaded, on the CPU."""

    def load(self, config: EngineConfig, watch: LoadWatch) -> ModelRunner:
        """Load and evaluate a model. Raises LoadError."""

    def load_encoder(self, config: EngineConfig, watch: LoadWatch) -> EncoderRunner:
        """As `load`, for a model that makes embeddings or scores."""

    def reclaim(self) -> None:
        """Give freed memory back to the system."""


BackendFactory = Callable[[], Backend]

_MLX_BACKEND = "mlxd.engines.mlx_backend"


def mlx_backend(prefix_folder: Any = None, ceiling: Callable[[], int | None] = lambda: None) -> Backend:
    """Import MLX and mlx-lm (seconds), with the BLAS that was chosen, and return the backend on them; models may keep
    prefixes in a PrefixFolder.

    `ceiling` gives the bytes that the process may use, None for no limit of ours.
    """
    if _MLX_BACKEND not in sys.modules:
        preload_blas()
        # with MLX's libraries these are 80,000 objects
        with lasting_imports():
            importlib.import_module(_MLX_BACKEND)
    module = importlib.import_module(_MLX_BACKEND)  # another lane may be about it
    return cast(Backend, module.MlxBackend(prefix_folder, ceiling))
