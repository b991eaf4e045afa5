"""What a model's folder says about it beyond what the registry knows: family, quantization, shape, chat template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from mlxd.daemon.api.errors import sayable
from mlxd.daemon.chat_templates import read_template
from mlxd.daemon.disk_thread import DiskStuck, DiskThread
from mlxd.memory.files import BadFile
from mlxd.memory.model_config import Config, model_type, number, read_config
from mlxd.registry.spec import ModelSpec

# Seconds that a client waits for a folder; on a disk that is lost the registry's own knowledge has to do.
PATIENCE = 5.0

_FLOAT_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}
_FLOAT_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
# Bits of a scale and a bias, which every group of quantized weights has.
_GROUP_BITS = 32
_GROUP_SIZE = 64


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """Empty, or 0, where the files do not say. `bits` are those of a weight, with its share of scales and biases."""

    family: str = ""
    quantization: str = ""
    bits: float = 0.0
    embedding_length: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocab_size: int = 0
    template: str = ""


class ModelFolders:
    """Reads folders, each again only when its files have changed. Used on the event loop only."""

    def __init__(self) -> None:
        self._disk = DiskThread(PATIENCE)
        self._read: dict[Path, tuple[str, FolderFacts]] = {}

    async def facts(self, spec: ModelSpec) -> FolderFacts:
        """What a model's folder says. Nothing of it raises: what cannot be read is not known."""
        key, facts = self._read.get(spec.path, (None, FolderFacts()))
        if key == spec.load_key:
            return facts
        try:
            facts = await self._disk.run(lambda: read_facts(spec.path))
        except DiskStuck:
            return facts
        self._read[spec.path] = (spec.load_key, facts)
        return facts

    async def facts_of(self, specs: Iterable[ModelSpec]) -> dict[str, FolderFacts]:
        """The same of several models, by their names."""
        return {spec.name: await self.facts(spec) for spec in specs}


FOLDERS = web.AppKey("model_folders", ModelFolders)


def read_facts(folder: Path) -> FolderFacts:
    """Read a folder's configuration and chat template."""
    try:
        config = read_config(folder)
    except BadFile:
        config = {}
    quantization, bits = _weights(config)
    heads = number(config, "num_attention_heads", "n_head", "n_heads") or 0
    return FolderFacts(
        family=sayable(model_type(config)),
        quantization=quantization,
        bits=bits,
        embedding_length=number(config, "hidden_size", "n_embd", "d_model", "dim") or 0,
        layers=number(config, "num_hidden_layers", "n_layer", "n_layers") or 0,
        heads=heads,
        kv_heads=number(config, "num_key_value_heads", "n_kv_heads") or heads,
        vocab_size=number(config, "vocab_size") or 0,
        template=sayable(read_template(folder)),
    )


def _weights(config: Config) -> tuple[str, float]:
    """What the weights are, as a name and as bits."""
    quantization = config.get("quantization") or config.get("quantization_config")
    if isinstance(quantization, dict) and (bits := number(quantization, "bits")) is not None:
        return f"{bits}bit", bits + _GROUP_BITS / (number(quantization, "group_size") or _GROUP_SIZE)
    kind = str(config.get("torch_dtype") or config.get("dtype"))
    return _FLOAT_NAMES.get(kind, ""), _FLOAT_BITS.get(kind, 0)
