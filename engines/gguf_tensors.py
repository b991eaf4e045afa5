"""Decodes GGUF tensors with numpy. Nothing here imports MLX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxd.engines.gguf_errors import CorruptGguf
from mlxd.engines.gguf_file import TENSOR_TYPES, TensorInfo

Bytes = NDArray[np.integer[Any]]
Floats = NDArray[np.float32]

_BLOCK_BYTES = {name: size for name, _, size in TENSOR_TYPES.values()}
_TWO_BIT_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


@dataclass(frozen=True, slots=True)
class Groups:
    """Weights as `codes * scales + biases`: codes are (groups, size), scales and biases (groups, 1)."""

    bits: int
    codes: Bytes
    scales: Floats
    biases: Floats

    @property
    def size(self) -> int:
        """Weights that share a scale."""
        return int(self.codes.shape[1])

    def dense(self) -> Floats:
        """The weights themselves, flat."""
        weights = self.codes * self.scales
        weights += self.biases
        return weights.reshape(-1)


def read_tensor(path: Path, info: TensorInfo) -> Floats | Groups:
    """Read one tensor: floats in its shape, or the groups of a quantised one. Raises CorruptGguf."""
    raw = np.fromfile(path, np.uint8, info.nbytes, offset=info.offset)
    if raw.size != info.nbytes:
        raise CorruptGguf(f"tensor {info.name!r} could not be read in full")
    if info.type in _FLOATS:
        return _FLOATS[info.type](raw).reshape(info.shape)
    return _GROUPS[info.type](raw.reshape(-1, _BLOCK_BYTES[info.type]))


def dense(tensor: Floats | Groups, info: TensorInfo) -> Floats:
    """The tensor as float32 in its shape."""
    return tensor.dense().reshape(info.shape) if isinstance(tensor, Groups) else tensor


def _f32(raw: Bytes) -> Floats:
    return raw.view("<f4")


def _f16(raw: Bytes) -> Floats:
    return raw.view("<f2").astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(blocks: Bytes, at: int) -> Floats:
    return _f16(np.ascontiguousarray(blocks[:, at : at + 2]))


def _nibbles(blocks: Bytes, at: int) -> Bytes:
    packed = blocks[:, at : at + 16]
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    bits: Bytes = np.unpackbits(blocks[:, at : at + 4].view(np.uint8), axis=1, bitorder="little")
    return bits << 4


def _q4_0(blocks: Bytes) -> Groups:
    scale = _half(blocks, 0)
    return Groups(4, _nibbles(blocks, 2), scale, scale * -8)


def _q4_1(blocks: Bytes) -> Groups:
    return Groups(4, _nibbles(blocks, 4), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> Groups:
    scale = _half(blocks, 0)
    return Groups(5, _nibbles(blocks, 6) | _fifth_bits(blocks, 2), scale, scale * -16)


def _q5_1(blocks: Bytes) -> Groups:
    return Groups(5, _nibbles(blocks, 8) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Groups:
    # signed to unsigned: flipping the top bit adds 128
    scale = _half(blocks, 0)
    return Groups(8, blocks[:, 2:34] ^ 0x80, scale, scale * -128)


def _k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes."""
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return scales, minima


def _k_groups(blocks: Bytes, at: int) -> Bytes:
    """Eight groups of 32 nibbles from 128 bytes: (blocks, 8, 32)."""
    packed = blocks[:, at : at + 128].reshape(-1, 4, 1, 32)
    return np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 8, 32)


def _k_result(bits: int, blocks: Bytes, codes: Bytes) -> Groups:
    scales, minima = _k_scales(blocks[:, 4:16])
    scale, bias = _half(blocks, 0) * scales, -_half(blocks, 2) * minima
    return Groups(bits, codes.reshape(-1, 32), scale.reshape(-1, 1), bias.reshape(-1, 1))


def _q4_k(blocks: Bytes) -> Groups:
    return _k_result(4, blocks, _k_groups(blocks, 16))


def _q5_k(blocks: Bytes) -> Groups:
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, None, 16:48] >> shifts & 1) << 4
    return _k_result(5, blocks, _k_groups(blocks, 48) | fifth)


def _two_bits(packed: Bytes) -> Bytes:
    """Sixteen groups of 16 from 64 bytes of 2-bit codes: (blocks, 2, 4, 32) in the order of the weights."""
    return packed.reshape(-1, 2, 1, 32) >> _TWO_BIT_SHIFTS & 3


def _q2_k(blocks: Bytes) -> Groups:
    scale = _half(blocks, 80) * (blocks[:, :16] & 15)
    bias = -_half(blocks, 82) * (blocks[:, :16] >> 4)
    codes = _two_bits(blocks[:, 16:80]).reshape(-1, 16)
    return Groups(2, codes, scale.reshape(-1, 1), bias.reshape(-1, 1))


def _q3_k(blocks: Bytes) -> Groups:
    packed = blocks[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = (packed[:, None, 8:] >> _TWO_BIT_SHIFTS & 3).reshape(-1, 16)
    scale = (_half(blocks, 108) * ((low | high << 4).astype(np.float32) - 32)).reshape(-1, 1)
    third = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 2
    codes = _two_bits(blocks[:, 32:96]).reshape(-1, 8, 32) | third
    return Groups(3, codes.reshape(-1, 16), scale, scale * -4)


def _q6_k(blocks: Bytes) -> Groups:
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    codes = np.concatenate([low & 15, low >> 4], axis=2) | _two_bits(blocks[:, 128:192]) << 4
    scale = (_half(blocks, 208) * blocks[:, 192:208].view(np.int8)).reshape(-1, 1)
    return Groups(6, codes.reshape(-1, 16), scale, scale * -32)


_FLOATS: Mapping[str, Callable[[Bytes], Floats]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}
_GROUPS: Mapping[str, Callable[[Bytes], Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
