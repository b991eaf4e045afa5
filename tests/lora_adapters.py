"""LoRA adapters for tiny models, made by mlx-lm's own tuner in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# From argv: the model's folder, the adapter's folder. lora_b begins at zero, which would change nothing.
_PROGRAM = """
import json, sys
from pathlib import Path
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

model, out = load_model(Path(sys.argv[1]))[0], Path(sys.argv[2])
config = {"num_layers": 2, "lora_parameters": {"rank": 4, "scale": 20.0, "dropout": 0.5}, "fine_tune_type": "lora"}
model.freeze()
mx.random.seed(7)
linear_to_lora_layers(model, config["num_layers"], config["lora_parameters"])
weights = {
    name: mx.random.normal(array.shape) if name.endswith("lora_b") else array
    for name, array in tree_flatten(model.trainable_parameters())
}
out.mkdir(parents=True)
mx.save_safetensors(str(out / "adapters.safetensors"), weights)
(out / "adapter_config.json").write_text(json.dumps(config))
"""


def build_adapter(model: Path, out: Path) -> Path:
    """Write an adapter of rank 4 over the last two layers of `model`, with random weights and dropout in its config."""
    subprocess.run([sys.executable, "-c", _PROGRAM, str(model), str(out)], check=True, timeout=120)
    return out
