"""A model of mlx-vlm with the face that mlx-lm's generator calls: tokens and caches in, logits out.

mlx-vlm's own batch generator has one sampler for all rows, takes no kept caches without its own store of them, and no
rows into a prompt batch that has begun. So mlx-lm's is used here too, with each row's images in its RowContext.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache
from mlx_vlm.models.cache import ArraysCache as OwnArraysCache

from mlxd.engines.prompt_images import Arrays
from mlxd.engines.vision_rows import NO_PLACES, ImageFeatures, Places, RowContext, RowContexts, Window, joined

# Architectures whose rows were seen to be the same alone and together, by mlx-vlm's names of their modules.
BATCHED = frozenset(
    {
        "aya_vision",
        "gemma3",
        "gemma4",
        "glm4v",
        "idefics3",
        "internvl_chat",
        "kimi_vl",
        "lfm2_vl",
        "mistral3",
        "pixtral",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
        "smolvlm",
    }
)
# These process padded rows one by one, in new caches that know nothing of padding on the right.
_TAKING_APART = ("qwen3_5", "qwen3_5_moe")
_GRIDS = "image_grid_thw"


def is_batched(model: Any, family: str) -> bool:
    """Whether rows of a model can be batched. Not where image tokens also look ahead, which needs a prompt in one."""
    looks_ahead = getattr(model.config.text_config, "use_bidirectional_attention", None) == "vision"
    return family in BATCHED and not looks_ahead


class VisionLanguage:
    """The language model of a vision model, which takes image features from its rows' contexts.

    `model` is mlx-vlm's, of an architecture in BATCHED.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._language = model.language_model
        # rotary positions in three dimensions (height and width within an image) are told from outside
        self._has_positions = hasattr(self._language, "get_rope_index")
        # nobody wants what it captures, but with it rows stay in the caches that they came with
        self._options: dict[str, Any] = {"capture_layer_ids": []} if model.config.model_type in _TAKING_APART else {}

    @property
    def layers(self) -> Any:
        return self._language.layers

    def make_cache(self) -> list[Any]:
        """Caches for one text row, the context last."""
        made = self._language.make_cache() if hasattr(self._language, "make_cache") else None
        layers = [_batched(layer) for layer in made] if made is not None else [KVCache() for _ in self.layers]
        return [*layers, RowContexts()]

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        """Logits, shape [rows, columns, vocabulary]."""
        *layers, contexts = cache
        windows = contexts.advance(tokens.shape[1])
        inputs = dict(self._options)
        if self._has_positions:
            inputs["position_ids"] = _positions(windows, tokens.shape[1])
        inputs |= self._with_images(tokens, windows)
        logits: mx.array = self._language(tokens, cache=layers, **inputs).logits
        return logits

    def context(
        self, prompt: Sequence[int], inputs: Arrays, places: Places = NO_PLACES, features: Sequence[ImageFeatures] = ()
    ) -> RowContext:
        """The context of a row whose prompt has features at these places; `inputs` are the processor's for the whole
        prompt.
        """
        if not self._has_positions:
            return RowContext(places, features)
        grids = mx.array(inputs[_GRIDS]) if _GRIDS in inputs else None
        positions, shift = self._language.get_rope_index(mx.array([list(prompt)]), image_grid_thw=grids)
        told = np.array(positions, dtype=np.int32)
        told = told[:, 0] if told.ndim == 3 else np.broadcast_to(told[0], (3, told.shape[-1]))  # noqa: PLR2004
        return RowContext(places, features, told, int(np.array(shift).reshape(-1)[0]))

    def _with_images(self, tokens: mx.array, windows: Sequence[Window]) -> dict[str, Any]:
        """Embeddings with the image tokens' features in their places; nothing when there are none."""
        seen = [(index, window, window.features) for index, window in enumerate(windows) if window.features is not None]
        if not seen:
            return {}
        made = self._model.get_input_embeddings(tokens, None)
        embeddings = made.inputs_embeds
        mask = np.zeros(tokens.shape, dtype=bool)
        for index, window, features in seen:
            columns = window.row.columns_in(window.start, window.stop)
            mask[index, columns] = True
            embeddings[index, mx.array(columns)] = features.rows.astype(embeddings.dtype)
        inputs: dict[str, Any] = {"inputs_embeds": embeddings}
        if made.per_layer_inputs is not None:
            inputs["per_layer_inputs"] = made.per_layer_inputs
        deep = joined([features for _, _, features in seen]).deep
        if deep:
            inputs |= {"visual_pos_masks": mx.array(mask), "deepstack_visual_embeds": list(deep)}
        return inputs


def _positions(windows: Sequence[Window], columns: int) -> mx.array:
    """Shape [3, rows, columns]; what padding has there does not matter."""
    positions = np.zeros((3, len(windows), columns), dtype=np.int32)
    for index, window in enumerate(windows):
        positions[:, index, : window.stop - window.start] = window.row.positions_of(window.start, window.stop)
    return mx.array(positions)


def _batched(layer: Any) -> Any:
    """A cache that mlx-lm can batch for one of mlx-vlm, which has classes of its own."""
    match type(layer).__name__:
        case "KVCache":
            return KVCache()
        case "RotatingKVCache":
            return RotatingKVCache(max_size=layer.max_size, keep=layer.keep)
        case "ArraysCache":
            return RowStates(len(layer.cache))
    return layer


class RowStates(OwnArraysCache):  # type: ignore[misc]
    """mlx-vlm's cache of recurrent states, for rows that mlx-lm pads on the right: with a padding on the left, even of
    nothing, its models look at no other.
    """

    batch_size = 1

    @property
    def left_padding(self) -> None:
        return None

    @left_padding.setter
    def left_padding(self, _: Any) -> None:
        pass

    @classmethod
    def merge(cls, caches: Sequence[RowStates]) -> RowStates:
        """One batch of several."""
        merged: RowStates = super().merge(caches)
        merged.batch_size = sum(cache.batch_size for cache in caches)
        return merged

    def extend(self, other: RowStates) -> None:
        """Add another batch's rows behind these."""
        super().extend(other)
        self.batch_size += other.batch_size

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep these rows."""
        super().filter(batch_indices)
        self.batch_size = len(batch_indices)


def kept_layers(layers: Sequence[Any]) -> list[Any]:
    """A row's caches in classes of mlx-lm alone, as they are kept and written; without its context."""
    return [_as(ArraysCache, layer) for layer in layers if not isinstance(layer, RowContexts)]


def own_layers(layers: Sequence[Any]) -> list[Any]:
    """Kept caches in the classes that mlx-vlm's models use."""
    return [_as(RowStates, layer) for layer in layers]


def _as(kind: type[Any], layer: Any) -> Any:
    """States in a cache of that kind; other layers as they are."""
    if not isinstance(layer, ArraysCache | OwnArraysCache) or isinstance(layer, kind):
        return layer
    made = kind(len(layer.cache))
    made.cache = list(layer.cache)
    return made
