"""What a LoRA adapter's folder holds, as mlx-lm writes it. Nothing here imports MLX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlxd.memory.files import BadFile
from mlxd.memory.model_config import MAX_CONFIG_BYTES, read_object
from mlxd.memory.weights import read_header

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapters.safetensors"


@dataclass(frozen=True, slots=True)
class AdapterEstimate:
    """An adapter folder in numbers; `problem` is a sentence that says why it cannot be loaded."""

    weight_bytes: int = 0
    problem: str | None = None


def inspect_adapter(folder: Path) -> AdapterEstimate:
    """Read both files' headers. Never raises for what the folder holds: that is a problem."""
    try:
        read_object(folder / ADAPTER_CONFIG, MAX_CONFIG_BYTES)
        tensors = read_header(folder / ADAPTER_WEIGHTS)
    except BadFile as error:
        return AdapterEstimate(problem=str(error))
    return AdapterEstimate(sum(tensor.nbytes for tensor in tensors.values()))
