"""One sequence on a vision model of mlx-vlm whose rows cannot be batched, driven as mlx-vlm's generate_step drives it.

Such models keep state of their last prompt in themselves: a new sequence is the end of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import mlx.core as mx
from mlx_vlm.generate.common import _chunked_prefill_enabled
from mlx_vlm.models.cache import cache_nbytes, make_prompt_cache

from mlxd.engines.cache_sizes import slots_of
from mlxd.engines.prompt_images import Arrays
from mlxd.engines.serial_vision_inputs import model_inputs
from mlxd.engines.vision_encoder import MASK, PIXELS
from mlxd.engines.vision_processor import IDS

NO_INPUTS: Arrays = MappingProxyType({})
# Where a model keeps the positions of its last prompt.
_STATE = ("_position_ids", "_rope_deltas")
# Positions that the processor gives go before those that the model tells.
_POSITIONS = ("position_ids", "rope_deltas")
_DECODER_IDS = "decoder_input_ids"
# Tokens after which caches are evaluated that no logits depend on: what they put off would grow.
_EVALUATED = 50


class SerialSequence:
    """A prompt and what follows it: `embed`, then `process` while any of it is `left`, then `feed` for each token.

    `inputs` are the processor's for the whole prompt, with its images. `length` tokens are in the caches, `left` of the
    prompt are not.
    """

    def __init__(self, model: Any, prompt: Sequence[int], inputs: Arrays = NO_INPUTS) -> None:
        self._model = model
        self._language = model.language_model
        forget(model)
        self.layers: list[Any] = make_prompt_cache(self._language)
        self._ids = mx.array([list(prompt)], dtype=mx.int32)
        self._given = inputs
        self._embeddings: mx.array | None = None
        self._inputs: dict[str, Any] = {}
        self._chunked = False
        self.length = 0

    @property
    def is_embedded(self) -> bool:
        """Whether `embed` has come to its end."""
        return self._embeddings is not None or self.length > 0

    @property
    def left(self) -> int:
        """Tokens of the prompt that are still to be processed."""
        return self._ids.shape[1]

    @property
    def chunked(self) -> bool:
        """Whether the prompt may be processed in chunks; known once it is embedded."""
        return self._chunked

    @property
    def slots(self) -> int:
        """Slots of the buffers that keep every token; 0 when there is none, or nothing in it yet."""
        return slots_of(list(single(self.layers)))

    @property
    def nbytes(self) -> int:
        """Bytes of all that it holds."""
        return self.cache_nbytes + self.beside_nbytes

    @property
    def cache_nbytes(self) -> int:
        return int(cache_nbytes(self.layers))

    @property
    def beside_nbytes(self) -> int:
        """Bytes that it holds beside its caches: embeddings, until the prompt is processed, and what layers look at."""
        return int(cache_nbytes([self._embeddings, self._inputs]))

    def embed(self) -> mx.array:
        """Embeddings of the prompt with its images, shape [1, length, hidden]. Raises whatever the model does."""
        given = model_inputs(self._given)
        given.pop(IDS, None)
        mask = given.pop(MASK, None) if self._given else mx.ones(self._ids.shape, dtype=mx.int32)
        made = self._model.get_input_embeddings(self._ids, given.pop(PIXELS, None), mask=mask, **given)
        told = {name: value for name, value in made.to_dict().items() if name != "inputs_embeds" and value is not None}
        inputs = given | told | {name: given[name] for name in _POSITIONS if name in given}
        if made.inputs_embeds.shape[1] != self._ids.shape[1] and _DECODER_IDS not in inputs:
            raise ValueError("the model reads an image as more places than there are tokens for it in a prompt")
        mx.eval(made.inputs_embeds, told)
        self._chunked = bool(
            _chunked_prefill_enabled(
                self._model,
                input_ids=self._ids,
                inputs_embeds=made.inputs_embeds,
                prompt_cache=self.layers,
                prefill_kwargs=inputs,
            )
        )
        self._given, self._inputs, self._embeddings = NO_INPUTS, inputs, made.inputs_embeds
        return self._embeddings

    def process(self, size: int) -> mx.array | None:
        """Process the next `size` tokens of the prompt at most, but its last one by itself, or all of it at once where
        it must not be in chunks. After the last: logits of what follows, shape [1, vocabulary], evaluated.
        """
        if self.chunked and self.left > 1:
            self._prefill(min(size, self.left - 1))
            return None
        ids, embeddings = self._ids, self._embeddings
        logits = self._next(ids, embeddings)
        self._ids, self._embeddings = ids[:, :0], None
        mx.eval(logits, self._states)
        return logits

    def feed(self, token: mx.array) -> mx.array:
        """Process a token that follows, shape [1]; logits of what comes then, shape [1, vocabulary], put off."""
        if self.length % _EVALUATED == 0:
            mx.eval(self._states)
        return self._next(token[None], None)

    def _prefill(self, size: int) -> None:
        assert self._embeddings is not None, "a prompt is embedded before it is processed"
        self._language(
            inputs=self._ids[:, :size],
            inputs_embeds=self._embeddings[:, :size],
            cache=self.layers,
            n_to_process=size,
            logits_to_keep=1,
            **self._inputs,
        )
        mx.eval(self._states)
        self._ids, self._embeddings = self._ids[:, size:], self._embeddings[:, size:]
        self.length += size

    @property
    def _states(self) -> list[Any]:
        return [layer.state for layer in self.layers]

    def _next(self, tokens: mx.array, embeddings: mx.array | None) -> mx.array:
        inputs = {**self._inputs, "logits_to_keep": 1}
        if _DECODER_IDS in inputs:
            made = self._language(cache=self.layers, **inputs)
        else:
            made = self._language(tokens, inputs_embeds=embeddings, cache=self.layers, **inputs)
        self._inputs = _handed_on(made)
        self.length += tokens.shape[1]
        logits: mx.array = made.logits[:, -1, :]
        return logits


def forget(model: Any) -> None:
    """Drop what a model keeps of its last prompt."""
    for part in (model, model.language_model):
        for name in _STATE:
            if hasattr(part, name):
                setattr(part, name, None)


def single(layers: Iterable[Any]) -> Iterator[Any]:
    """Caches, with nested lists of them opened."""
    for layer in layers:
        nested = getattr(layer, "caches", None)
        if nested is None:
            yield layer
        else:
            yield from single(nested)


def _handed_on(made: Any) -> dict[str, Any]:
    """What one call of the language model gives to the next one."""
    for name in ("cross_attention_states", "encoder_outputs"):
        value = getattr(made, name)
        if value is not None:
            return {name: value}
    return {}
