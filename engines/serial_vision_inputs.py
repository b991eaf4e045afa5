"""What a processor makes of a prompt with images, as arrays that belong to no MLX thread, and back.

A list has one entry for each of its leaves, named by its place: `pixel_values.0`. What is no array has no dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten, tree_unflatten

from mlxd.engines.prompt_images import Arrays

_TEXT_KINDS = "OU"


def flat_inputs(made: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """A processor's outputs without those that are None; arrays are copied."""
    given = {name: value for name, value in made.items() if value is not None}
    return {name: plain(leaf) for name, leaf in tree_flatten(given)}


def model_inputs(inputs: Arrays) -> dict[str, Any]:
    """The same outputs as the model takes them: MLX's arrays, lists and plain values."""
    leaves = [(name, _leaf(array, nested="." in name)) for name, array in inputs.items()]
    return dict(tree_unflatten(leaves)) if leaves else {}


def plain(value: Any) -> npt.NDArray[Any]:
    """A copy that belongs to no MLX thread."""
    if isinstance(value, mx.array) and value.dtype == mx.bfloat16:
        value = value.astype(mx.float32)
    return np.array(value)


def _leaf(array: npt.NDArray[Any], *, nested: bool) -> Any:
    if array.dtype.kind in _TEXT_KINDS or (nested and array.ndim == 0):
        return array.item()
    return mx.array(array)
