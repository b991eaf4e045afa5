"""Turns GGUF tensors into MLX arrays and writes them as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxd.engines.gguf_llama import TensorPlan
from mlxd.engines.gguf_tensors import Bytes, Groups, dense, read_tensor

# Rows are quantised in groups of the first size that divides them.
_GROUP_SIZES = (64, 32)
_NIBBLE = 4


@dataclass(slots=True)
class WeightConverter:
    """Turns tensors of the file into arrays, and remembers how each was quantised."""

    path: Path
    bits: int
    dtype: mx.Dtype
    groups: dict[str, int] = field(default_factory=dict)

    def convert(self, plan: TensorPlan) -> dict[str, mx.array]:
        tensor = read_tensor(self.path, plan.source)
        size = self._group_size(plan, tensor)
        if size is None:
            weights = _in_order(dense(tensor, plan.source), plan.heads)
            return {plan.name: mx.array(weights).astype(self.dtype)}
        module = plan.name.removesuffix(".weight")
        self.groups[module] = size
        if isinstance(tensor, Groups) and (tensor.bits, tensor.size) == (self.bits, size):
            weight, scales, biases = _packed(tensor, plan)
        else:
            weights = _in_order(dense(tensor, plan.source), plan.heads)
            weight, scales, biases = mx.quantize(mx.array(weights), group_size=size, bits=self.bits)
        return {
            f"{module}.weight": weight,
            f"{module}.scales": scales.astype(self.dtype),
            f"{module}.biases": biases.astype(self.dtype),
        }

    def quantization(self) -> dict[str, Any] | None:
        """The entry for config.json: the common group size, and the modules that differ."""
        if not self.groups:
            return None
        sizes = list(self.groups.values())
        common = max(set(sizes), key=sizes.count)
        different = {
            name: {"group_size": size, "bits": self.bits, "mode": "affine"}
            for name, size in self.groups.items()
            if size != common
        }
        return {"group_size": common, "bits": self.bits, "mode": "affine", **different}

    def _group_size(self, plan: TensorPlan, tensor: Any) -> int | None:
        # 1. vectors and unquantised models stay as they are
        # 2. groups that MLX can hold as they are stay exact
        # 3. the largest size that divides the rows; none at all leaves the tensor unquantised
        if not self.bits or len(plan.source.shape) == 1:
            return None
        if isinstance(tensor, Groups) and tensor.bits == self.bits and tensor.size in _GROUP_SIZES:
            return tensor.size
        return next((size for size in _GROUP_SIZES if plan.source.shape[-1] % size == 0), None)


def _in_order(rows: Any, heads: int | None) -> Any:
    """GGUF interleaves the two halves of each query and key head; put them back one after the other."""
    if heads is None:
        return rows
    count = rows.shape[0]
    order = np.arange(count).reshape(heads, count // heads // 2, 2).swapaxes(1, 2).reshape(-1)
    return rows[order]


def _packed(groups: Groups, plan: TensorPlan) -> tuple[mx.array, mx.array, mx.array]:
    """The file's own groups in MLX's layout: codes packed into 32-bit words, lowest bits first."""
    rows = plan.source.shape[0]
    codes: Bytes = groups.codes.reshape(rows, -1)
    if groups.bits == _NIBBLE:
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    words = np.ascontiguousarray(codes).view("<u4")
    parts = (words, groups.scales.reshape(rows, -1), groups.biases.reshape(rows, -1))
    weight, scales, biases = (mx.array(_in_order(part, plan.heads)) for part in parts)
    return weight, scales, biases


class WeightWriter:
    """Writes safetensors files of at most `shard_bytes` each, with an index when there are several."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder = folder
        self._limit = shard_bytes
        self._shard: dict[str, mx.array] = {}
        self._shards: list[list[str]] = []
        self._total = 0

    def add(self, arrays: Mapping[str, mx.array]) -> None:
        size = sum(array.nbytes for array in arrays.values())
        if self._shard and self._shard_size() + size > self._limit:
            self._flush()
        mx.eval(list(arrays.values()))
        self._shard.update(arrays)
        self._total += size

    def finish(self) -> int:
        """Write what is left and the index. Returns the bytes of all weights."""
        self._flush()
        count = len(self._shards)
        files = [
            f"model-{n:05}-of-{count:05}.safetensors" if count > 1 else "model.safetensors" for n in range(1, count + 1)
        ]
        for number, file in enumerate(files):
            (self._folder / self._partial(number)).rename(self._folder / file)
        if count > 1:
            weight_map = {name: file for file, names in zip(files, self._shards, strict=True) for name in names}
            index = {"metadata": {"total_size": self._total}, "weight_map": weight_map}
            text = json.dumps(index, indent=2)
            (self._folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
        return self._total

    def _shard_size(self) -> int:
        return sum(array.nbytes for array in self._shard.values())

    def _flush(self) -> None:
        file = self._folder / self._partial(len(self._shards))
        mx.save_safetensors(str(file), self._shard, metadata={"format": "mlx"})
        self._shards.append(list(self._shard))
        self._shard = {}

    def _partial(self, number: int) -> str:
        return f"partial-{number}.safetensors"
