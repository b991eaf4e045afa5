"""What the safetensors files of a folder hold, from their headers alone."""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from mlxd.memory.files import BadFile, open_regular, reason, shown
from mlxd.memory.model_config import read_object

WEIGHT_FILES = "model*.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
_MAX_ENTRY_BYTES = 4096
_LENGTH_BYTES = 8
# bytes of one number; what MLX cannot read is left out
_DTYPES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "C64"), 8),
}
_FLOATS = frozenset({"F16", "BF16", "F32"})

_Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Shape = Annotated[list[_Whole], msgspec.Meta(max_length=16)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: _Shape
    data_offsets: tuple[_Whole, _Whole]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored array: its type in safetensors' words and its bytes."""

    dtype: str
    nbytes: int


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors by name, each once, as mlx-lm would load them. Raises BadFile when any file is not whole.

    A file the index lists may be missing only when the files that are there hold its tensors.
    """
    try:
        names = sorted(fnmatch.filter(os.listdir(folder), WEIGHT_FILES))  # noqa: PTH208 - names are all it needs
    except (OSError, ValueError) as error:
        raise BadFile(f"the folder cannot be read: {reason(error)}") from error
    if not names:
        raise BadFile(f"no safetensors weights ({WEIGHT_FILES})")
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors.update(read_header(folder / name))
    if not tensors:
        raise BadFile(f"{shown(names[0])} holds no tensors")
    if os.path.lexists(folder / INDEX_FILE):
        _check_index(folder, tensors)
    return tensors


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name. Raises BadFile for anything but a whole safetensors file."""
    with open_regular(path) as stream:
        try:
            size = os.fstat(stream.fileno()).st_size
            header = _header_bytes(stream, size, path)
        except OSError as error:
            raise BadFile(f"{shown(path.name)} cannot be read: {reason(error)}") from error
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        located = {name: _entry(name, raw) for name, raw in entries.items() if name != "__metadata__"}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFile(f"{shown(path.name)} has a bad header: {error}") from error
    _check_layout(path, located, size - _LENGTH_BYTES - len(header))
    return {name: Tensor(entry.dtype, _length(entry)) for name, entry in located.items()}


def total_bytes(tensors: Mapping[str, Tensor], *, tied: bool) -> int:
    """Bytes of all tensors; with `tied` an output head that repeats the embeddings is not counted."""
    return sum(
        tensor.nbytes
        for name, tensor in tensors.items()
        if not (tied and name.removeprefix("language_model.").startswith("lm_head."))
    )


def float_itemsize(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of one number as the model computes: of a quantized model's scales, else of most weights."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.dtype in _FLOATS}
    scales = {name: tensor for name, tensor in floats.items() if name.endswith(".scales")}
    bytes_by_size = {4: 0, 2: 0}
    for tensor in (scales or floats).values():
        bytes_by_size[_DTYPES[tensor.dtype]] += tensor.nbytes
    return 4 if bytes_by_size[4] > bytes_by_size[2] else 2


def _header_bytes(stream: BinaryIO, size: int, path: Path) -> bytes:
    name = shown(path.name)
    prefix = stream.read(_LENGTH_BYTES)
    if len(prefix) < _LENGTH_BYTES:
        raise BadFile(f"{name} is truncated: {size} bytes are too few for a header")
    if prefix == b"version ":
        raise BadFile(f"{name} is a Git LFS pointer, not the weights; fetch them with git lfs pull")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise BadFile(f"{name} is not a safetensors file: a header of {length} bytes is over the limit")
    if length > size - _LENGTH_BYTES:
        raise BadFile(f"{name} is truncated: its header has {length} bytes, the file {size}")
    header = stream.read(length)
    if len(header) < length:
        raise BadFile(f"{name} is truncated: it shrank while it was read")
    return header


def _entry(name: str, raw: msgspec.Raw) -> _Entry:
    if len(memoryview(raw)) > _MAX_ENTRY_BYTES:
        raise msgspec.ValidationError(f"the entry of {shown(name)} is too long")
    try:
        return msgspec.json.decode(raw, type=_Entry)
    except msgspec.DecodeError as error:
        raise msgspec.ValidationError(f"{shown(name)}: {error}") from error


def _length(entry: _Entry) -> int:
    return entry.data_offsets[1] - entry.data_offsets[0]


def _check_layout(path: Path, entries: Mapping[str, _Entry], data_bytes: int) -> None:
    """Types known, sizes as the shapes say, everything inside the file, nothing over anything else."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        first, last = entry.data_offsets
        itemsize = _DTYPES.get(entry.dtype)
        if itemsize is None:
            raise BadFile(f"{shown(path.name)} has a tensor of type {shown(entry.dtype)}, which MLX cannot read")
        if math.prod(entry.shape) * itemsize != last - first:
            raise BadFile(f"{shown(path.name)} has a bad header: {shown(name)} has other offsets than its shape needs")
        if first < end and last > first:
            raise BadFile(f"{shown(path.name)} has a bad header: {shown(name)} overlaps another tensor")
        end = max(end, last)
    if end > data_bytes:
        raise BadFile(f"{shown(path.name)} is truncated: {end - data_bytes} of {end} bytes of tensors are missing")


def _check_index(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    files = read_object(folder / INDEX_FILE, MAX_HEADER_BYTES).get("weight_map")
    if not isinstance(files, dict):
        raise BadFile(f"{INDEX_FILE} has no weight_map")
    missing = sorted({str(file) for name, file in files.items() if name not in tensors})
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadFile(f"{shown(missing[0])}{others}, listed in {INDEX_FILE}, is missing or lacks tensors")
