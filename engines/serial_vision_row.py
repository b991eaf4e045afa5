"""One request of a vision model whose rows cannot be batched."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxd.engines.backend import NewRow
from mlxd.engines.image_price import NO_IMAGES, ImageNeed
from mlxd.engines.prompt_images import PromptImages
from mlxd.engines.prompt_price import BatchNeed, RowNeed
from mlxd.engines.row_faults import LogitsProcessor, RowFault, Sampler
from mlxd.engines.sampling import row_options
from mlxd.engines.serial_vision_images import PromptEncoding
from mlxd.engines.serial_vision_sequence import SerialSequence
from mlxd.engines.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token that is sampled but not waited for yet, shape [1], and what it was drawn from, shape [1, vocabulary]."""

    token: mx.array
    logprobs: mx.array


@dataclass(slots=True, eq=False)
class SerialRow:
    """`again` are tokens that it had generated before it lost its place; they follow the prompt once more. Then it may
    have `left` tokens. `sequence` is there while it has its turn, `encoding` while its images are encoded, and `drawn`
    once its prompt is processed. `context` are all its tokens so far, where `processors` read them.
    """

    uid: int
    prompt: tuple[int, ...]
    again: deque[int]
    left: int
    chunk: int
    sampler: Sampler
    processors: list[LogitsProcessor]
    context: mx.array
    ends: frozenset[int]
    logprobs: int | None
    fault: RowFault
    images: PromptImages | None
    sequence: SerialSequence | None = None
    encoding: PromptEncoding | None = None
    drawn: Drawn | None = None

    @property
    def is_embedded(self) -> bool:
        return self.sequence is not None and self.sequence.is_embedded

    @property
    def nbytes(self) -> int:
        return 0 if self.sequence is None else self.sequence.nbytes

    @property
    def is_full(self) -> bool:
        """Whether the token that follows needs longer buffers."""
        sequence = self.sequence
        return sequence is not None and not sequence.left and 0 < sequence.slots <= sequence.length

    def draw(self, logits: mx.array) -> None:
        """Sample the token that follows `logits`, shape [1, vocabulary]."""
        for processor in self.processors:
            logits = processor(self.context, logits)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        self.drawn = Drawn(self.sampler(logprobs), logprobs)
        mx.async_eval(self.drawn.token, logprobs)  # type: ignore[no-untyped-call]

    def feed(self, token: mx.array) -> mx.array:
        """Have a token of shape [1] processed; the logits that follow it."""
        assert self.sequence is not None, "a row without its turn has no tokens"
        if self.processors:
            self.context = mx.concatenate([self.context, token.astype(mx.int32)])
        return self.sequence.feed(token)

    def need(self, images: ImageNeed) -> BatchNeed:
        """This row as a price sees it; `images` are what it takes beside its caches until it is embedded."""
        sequence = self.sequence
        if sequence is None or not sequence.is_embedded:
            return BatchNeed((RowNeed(len(self.prompt) + len(self.again), self.left, images=images),))
        beside = ImageNeed(sequence.beside_nbytes) if sequence.beside_nbytes else NO_IMAGES
        tokens = sequence.length + sequence.left + len(self.again)
        row = RowNeed(tokens, self.left, sequence.length, sequence.slots, beside)
        return BatchNeed((row,), sequence.slots, decoding=int(self.drawn is not None))


def serial_row(uid: int, new: NewRow, tokenizer: Tokenizer, vocab_size: int) -> SerialRow:
    """A row that waits for its turn. Raises InvalidRequest for a guide that does not compile."""
    request, fault = new.request, RowFault()
    options = row_options(request, tokenizer, vocab_size, fault, new.drawn)
    return SerialRow(
        uid=uid,
        prompt=request.prompt,
        again=deque(new.tokens[len(request.prompt) :]),
        left=new.left,
        chunk=new.chunk,
        sampler=options["samplers"][0],
        processors=options["logits_processors"][0],
        context=_context(request.prompt, vocab_size),
        ends=frozenset() if request.sampling.ignore_eos else tokenizer.end_tokens,
        logprobs=request.sampling.logprobs,
        fault=fault,
        images=request.images,
    )


def _context(prompt: Sequence[int], vocab_size: int) -> mx.array:
    """A prompt as processors read it, who look its tokens up among the logits: ids beyond those, as of images, are
    another of its tokens.
    """
    known = next((token for token in prompt if token < vocab_size), 0)
    return mx.array([token if token < vocab_size else known for token in prompt], dtype=mx.int32)
