"""Reads the header of a GGUF file: metadata and where each tensor lies. Nothing here imports MLX."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mlxd.engines.gguf_errors import CorruptGguf, MissingMetadata, NotGguf, UnsupportedGguf

T = TypeVar("T")
D = TypeVar("D")

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# ggml's type numbers: name, elements in a block, bytes of a block
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
# spoken of in refusals only
_OTHER_TYPES: Mapping[int, str] = {
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape, rows first; its ggml type's name; where its bytes are in the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The file's key-value part, with typed access. Raises MissingMetadata and CorruptGguf."""

    values: Mapping[str, Any]

    def get(self, key: str, kind: type[T]) -> T:
        """The value as `kind`: str, int, float, bool or list."""
        if key not in self.values:
            raise MissingMetadata(key)
        value = self.values[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise CorruptGguf(f"metadata key {key} holds a {type(value).__name__}, expected a {kind.__name__}")
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings."""
        values = self.get(key, list)
        if not all(isinstance(value, str) for value in values):
            raise CorruptGguf(f"metadata key {key} holds a list of something else than strings")
        return values

    def positive(self, key: str) -> int:
        """An integer above 0."""
        value = self.get(key, int)
        if value < 1:
            raise CorruptGguf(f"metadata key {key} is {value}")
        return value

    def find(self, key: str, kind: type[T], default: D) -> T | D:
        """Like `get`, with `default` for a key that is absent."""
        return self.get(key, kind) if key in self.values else default


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed header; the tensors' bytes stay in the file."""

    path: Path
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]


def read_header(path: Path) -> GgufFile:
    """Parse a GGUF header and check it against the file's size.

    Raises NotGguf, CorruptGguf, or UnsupportedGguf for a tensor type or version that cannot be read.
    """
    if not path.is_file():
        raise NotGguf(f"{path} is not a file")
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise NotGguf(f"{path.name} is not a GGUF file: it does not start with the letters GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, _Cursor(data, len(MAGIC)))


class _Cursor:
    """Takes little-endian values off the mapped file, never past its end."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self._data = data
        self.position = position
        self.size = len(data)

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size:
            raise CorruptGguf(f"the file is cut off: its header goes on past its {self.size} bytes")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def unpack(self, code: str, count: int = 1) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{code}", self.take(struct.calcsize(f"<{code}") * count))

    def integer(self, code: str = "Q") -> int:
        return int(self.unpack(code)[0])

    def string(self) -> str:
        raw = self.take(self.integer())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptGguf(f"a string before byte {self.position} is not UTF-8") from error


def _parse(path: Path, cursor: _Cursor) -> GgufFile:
    version = cursor.integer("I")
    if version not in VERSIONS:
        raise UnsupportedGguf(f"GGUF version {version} is not supported, only little-endian {VERSIONS}")
    tensor_count, key_count = cursor.integer(), cursor.integer()
    metadata = Metadata(_unique("metadata key", ((cursor.string(), _value(cursor)) for _ in range(key_count))))
    infos = [_tensor(cursor) for _ in range(tensor_count)]
    alignment = metadata.find("general.alignment", int, 32)
    if alignment < 1 or alignment & (alignment - 1):
        raise CorruptGguf(f"general.alignment is {alignment}, which is not a power of two")
    start = -(-cursor.position // alignment) * alignment
    tensors = (_placed(info, start, cursor.size) for info in infos)
    return GgufFile(path, metadata, _unique("tensor", ((info.name, info) for info in tensors)))


def _unique(what: str, pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise CorruptGguf(f"{what} {name!r} appears twice")
        found[name] = value
    return found


def _value(cursor: _Cursor) -> Any:
    kind = cursor.integer("I")
    if kind != _ARRAY:
        return _scalar(cursor, kind)
    kind, count = cursor.integer("I"), cursor.integer()
    if count > cursor.size:
        raise CorruptGguf(f"the file is cut off: an array of {count} values is longer than the file")
    if kind == _STRING:
        return [cursor.string() for _ in range(count)]
    if kind not in _SCALARS:
        raise CorruptGguf(f"an array holds values of type {kind}, which is not allowed")
    return list(cursor.unpack(_SCALARS[kind], count))


def _scalar(cursor: _Cursor, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind not in _SCALARS:
        raise CorruptGguf(f"a metadata value has the type {kind}, which does not exist")
    return cursor.unpack(_SCALARS[kind])[0]


def _tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.string()
    dimensions = cursor.integer("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise CorruptGguf(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(reversed(cursor.unpack("Q", dimensions)))
    number, offset = cursor.integer("I"), cursor.integer()
    if number not in TENSOR_TYPES:
        known = ", ".join(label for label, _, _ in TENSOR_TYPES.values())
        label = _OTHER_TYPES.get(number, f"number {number}")
        raise UnsupportedGguf(f"tensor {name!r} has the type {label}; supported are {known}")
    label, block, size = TENSOR_TYPES[number]
    if 0 in shape or shape[-1] % block:
        raise CorruptGguf(f"tensor {name!r} of shape {shape} does not divide into blocks of {block}")
    return TensorInfo(name, shape, label, offset, math.prod(shape) // block * size)


def _placed(info: TensorInfo, start: int, size: int) -> TensorInfo:
    offset = start + info.offset
    if offset + info.nbytes > size:
        raise CorruptGguf(f"the file is cut off: tensor {info.name!r} ends past its {size} bytes")
    return TensorInfo(info.name, info.shape, info.type, offset, info.nbytes)
