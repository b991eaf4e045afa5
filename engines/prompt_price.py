"""What prompts and running rows will take, in bytes: caches as they are laid out, and the height of their prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mlxd.engines.cache_cost import STEP, CacheCost, grown
from mlxd.engines.image_price import NO_IMAGES, ImageNeed, ImagePrice
from mlxd.engines.transients import Transients

# Bytes for each entry of the vocabulary that a row's logits and logprobs take while it decodes, this token's and the
# next one's, in single precision.
_LOGIT_BYTES = 12


@dataclass(frozen=True, slots=True)
class RowNeed:
    """One row as a price sees it, in tokens: `prompt` in all, of which `done` are in a buffer of `slots`, and `left`
    that it may still generate. `images` are what its images take.
    """

    prompt: int
    left: int
    done: int = 0
    slots: int = 0
    images: ImageNeed = NO_IMAGES

    def slots_after(self, chunk: int) -> int:
        """Slots of a buffer for the whole prompt, whose last token has a step of its own."""
        todo = self.prompt - self.done
        return grown(grown(self.slots, self.done, todo - 1, chunk), self.prompt - 1, 1, 1) if todo else self.slots


@dataclass(frozen=True, slots=True)
class BatchNeed:
    """A padded batch: `rows` that decode or will. `decoding` of them do, in a buffer of `slots`."""

    rows: Sequence[RowNeed] = ()
    slots: int = 0
    decoding: int = 0

    @property
    def prefilling(self) -> list[RowNeed]:
        """The rows whose prompts are not processed yet."""
        return [row for row in self.rows if row.done < row.prompt]

    @property
    def prompts(self) -> RowNeed:
        """The rows that prefill, as their buffer is laid out: all are padded to the one that is furthest, and go on
        until the one that has the most before it is complete. Nothing when there are none.
        """
        rows = self.prefilling
        done = max((row.done for row in rows), default=0)
        todo = max((row.prompt - row.done for row in rows), default=0)
        return RowNeed(done + todo, 0, done, max((row.slots for row in rows), default=0))

    def slots_after(self, chunk: int) -> int:
        """Slots of the buffer that holds all rows in the end, with the next step of growth."""
        decoding = [row for row in self.rows if row.done >= row.prompt]
        slots = max([self.slots, self.prompts.slots_after(chunk), *(row.slots for row in decoding)])
        used = max([self.prompts.prompt, *(row.done for row in decoding)])
        return grown(slots, used, min(STEP, max((row.left for row in self.rows), default=0)), 1)


@dataclass(frozen=True, slots=True)
class PromptPrice:
    """Prices of one loaded model; immutable, for any thread."""

    cost: CacheCost = field(default_factory=CacheCost)
    transients: Transients = field(default_factory=Transients)
    vocab_size: int = 0
    images: ImagePrice = field(default_factory=ImagePrice)

    def with_images(self, images: ImagePrice) -> PromptPrice:
        """The same, with other prices of images."""
        return replace(self, images=images)

    def alone(self, row: RowNeed, chunk: int) -> int:
        """Bytes of a row that has the model for itself, at the height of its prefill or as its answer begins."""
        return self.batches([BatchNeed((row,))], chunk)

    def batches(self, needs: Sequence[BatchNeed], chunk: int) -> int:
        """Bytes of batches once their prompts are processed and their rows have grown by a step, with what the dearest
        prefill or copy takes beside that. They compute one after the other. Every row costs as much as the longest.
        """
        kept = sum(self._kept(need, chunk) for need in needs if need.rows)
        return kept + max((self._passing(need, chunk) for need in needs if need.rows), default=0)

    def kv(self, need: BatchNeed, chunk: int) -> int:
        """Bytes of a batch's caches in the end."""
        return self.cost.bytes(len(need.rows), need.slots_after(chunk))

    def _kept(self, need: BatchNeed, chunk: int) -> int:
        new = len(need.rows) - need.decoding
        images = sum(row.images.kept for row in need.rows)
        return self.kv(need, chunk) + _LOGIT_BYTES * self.vocab_size * new + images

    def _passing(self, need: BatchNeed, chunk: int) -> int:
        """What it takes for a while: to join rows to others, to process prompts, or to encode an image."""
        copy = self.cost.copy_bytes(len(need.rows), need.slots_after(chunk)) if need.decoding else 0
        return max(copy, self._prefill(need, chunk), *(row.images.peak for row in need.rows))

    def _prefill(self, need: BatchNeed, chunk: int) -> int:
        """The larger of two: the last chunk of the prompts, and the whole one before it, when the caches were smaller
        by what they grow after it.
        """
        rows, prompts = len(need.prefilling), need.prompts
        if not rows:
            return 0
        tokens = prompts.prompt - prompts.done
        last = tokens % chunk or min(chunk, tokens)
        ends = [self._step(rows, last, prompts.prompt)]
        if tokens > chunk:
            before = prompts.prompt - last
            slots = grown(prompts.slots, prompts.done, before - prompts.done, chunk)
            less = self.cost.bytes(rows, need.slots_after(chunk)) - self.cost.bytes(rows, slots)
            ends.append(self._step(rows, chunk, before) - max(0, less))
        return max(ends)

    def _step(self, rows: int, chunk: int, keys: int) -> int:
        """Working memory of one step, and what windows keep beyond their size meanwhile."""
        beyond = self.cost.bytes(rows, keys, chunk) - self.cost.bytes(rows, keys)
        return self.transients.estimate(rows, chunk, keys) + beyond
