"""From the states of a text's tokens to its vector."""

# mlx.nn comes without types.
# mypy: allow-subclassing-any, no-warn-return-any

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxd.engines.encoder_modules import DenseLayer, Pooling, SentenceModules
from mlxd.engines.errors import LoadError, LoadFailure

_ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = MappingProxyType(
    {"Identity": lambda x: x, "Tanh": mx.tanh, "ReLU": nn.relu, "GELU": nn.gelu, "SiLU": nn.silu}
)
# As sentence-transformers bounds a length below, so that a vector of nothing stays one.
_TINY = 1e-12


class SentenceHead(nn.Module):
    """Pools, goes through the dense layers, and normalises; all in float32.

    Raises LoadError for weights that are not there or do not fit `hidden`, the size of a token's state.
    """

    def __init__(self, modules: SentenceModules, hidden: int, folder: Path) -> None:
        super().__init__()
        if modules.pooled not in (None, hidden):
            raise _bad(folder, f"its pooling expects states of {modules.pooled} numbers, the model has {hidden}")
        self._pooling = modules.pooling
        self._unit = modules.unit
        self._activations = [_activation(layer) for layer in modules.dense]
        size = hidden * len(modules.pooling)
        self.dense = []
        for layer in modules.dense:
            self.dense.append(_linear(layer, size))
            size = layer.outputs

    def __call__(self, states: mx.array, lengths: mx.array) -> mx.array:
        """(rows, width, hidden) and (rows,) tokens that are no padding to (rows, dimensions)."""
        states = states.astype(mx.float32)
        x = mx.concatenate([_pooled(mode, states, lengths) for mode in self._pooling], axis=-1)
        for linear, activation in zip(self.dense, self._activations, strict=True):
            x = activation(linear(x))
        return x / mx.maximum(mx.linalg.norm(x, axis=-1, keepdims=True), _TINY) if self._unit else x


def _pooled(mode: Pooling, states: mx.array, lengths: mx.array) -> mx.array:
    places = mx.arange(states.shape[1])
    real = (places < lengths[:, None])[..., None]
    counts = lengths[:, None].astype(mx.float32)
    match mode:
        case Pooling.CLS:
            return states[:, 0]
        case Pooling.LAST:
            return mx.take_along_axis(states, (lengths - 1)[:, None, None], axis=1)[:, 0]
        case Pooling.MAX:
            return mx.where(real, states, -mx.inf).max(axis=1)
        case Pooling.WEIGHTED_MEAN:
            weights = real * (places + 1)[:, None].astype(mx.float32)
            return (states * weights).sum(axis=1) / weights.sum(axis=1)
    total = mx.where(real, states, 0).sum(axis=1)
    return total / (mx.sqrt(counts) if mode is Pooling.MEAN_SQRT_LEN else counts)


def _linear(layer: DenseLayer, inputs: int) -> nn.Linear:
    file = layer.folder / "model.safetensors"
    if layer.inputs != inputs:
        raise _bad(layer.folder, f"in_features is {layer.inputs}, but {inputs} numbers come in")
    if not file.is_file():  # a pipe would hold the load up
        raise _bad(layer.folder, "there is no model.safetensors")
    linear = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
    try:
        weights: Any = mx.load(str(file))
        named = [(name.removeprefix("linear."), array.astype(mx.float32)) for name, array in weights.items()]
        linear.load_weights(named, strict=True)
    except (OSError, RuntimeError, ValueError, AttributeError) as error:
        raise _bad(layer.folder, f"{file.name}: {error}") from error
    return linear


def _activation(layer: DenseLayer) -> Callable[[mx.array], mx.array]:
    if layer.activation not in _ACTIVATIONS:
        message = f"{layer.folder.name}: activation_function {layer.activation[:100]} is not known"
        raise LoadError(LoadFailure.UNSUPPORTED, message)
    return _ACTIVATIONS[layer.activation]


def _bad(folder: Path, what: str) -> LoadError:
    return LoadError(LoadFailure.BAD_FILES, f"{folder.name}: {what}")
