"""BERT and XLM-RoBERTa in numpy's float64, one text at a time without padding: what the engines are held against."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

_erf = np.vectorize(math.erf)


class NumpyEncoder:
    """The model of a folder; its tokens are given, so that no tokenizer is in it."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.weights = {
            name: array.astype(np.float64) for name, array in load_file(folder / "model.safetensors").items()
        }

    def states(self, tokens: Sequence[int], second: int = 0) -> np.ndarray:
        """(tokens, hidden); the last `second` tokens are of a second text."""
        get = self.weights
        first = self.config["pad_token_id"] + 1 if self.config["model_type"] == "xlm-roberta" else 0
        types = np.array([0] * (len(tokens) - second) + [1] * second)
        x = (
            get["embeddings.word_embeddings.weight"][list(tokens)]
            + get["embeddings.position_embeddings.weight"][first : first + len(tokens)]
            + get["embeddings.token_type_embeddings.weight"][types]
        )
        x = self._norm("embeddings.LayerNorm", x)
        for layer in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}."
            x = self._norm(f"{at}attention.output.LayerNorm", x + self._attention(at, x))
            inner = self._linear(f"{at}intermediate.dense", x)
            inner = inner * (1 + _erf(inner / math.sqrt(2))) / 2
            x = self._norm(f"{at}output.LayerNorm", x + self._linear(f"{at}output.dense", inner))
        return x

    def score(self, tokens: Sequence[int], second: int) -> float:
        """A cross-encoder's logit."""
        state = self.states(tokens, second)[:1]
        if self.config["model_type"] == "bert":
            return self._linear("classifier", np.tanh(self._linear("pooler.dense", state))).item()
        return self._linear("classifier.out_proj", np.tanh(self._linear("classifier.dense", state))).item()

    def _attention(self, at: str, x: np.ndarray) -> np.ndarray:
        heads = self.config["num_attention_heads"]
        q, k, v = (
            self._linear(f"{at}attention.self.{part}", x).reshape(len(x), heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out = scores / scores.sum(axis=-1, keepdims=True) @ v
        return self._linear(f"{at}attention.output.dense", out.transpose(1, 0, 2).reshape(len(x), -1))

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def unit(vector: np.ndarray) -> np.ndarray:
    """The same direction, of length 1."""
    return vector / np.linalg.norm(vector)


POOLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "pooling_mode_cls_token": lambda states: states[0],
    "pooling_mode_max_tokens": lambda states: states.max(axis=0),
    "pooling_mode_mean_tokens": lambda states: states.mean(axis=0),
    "pooling_mode_mean_sqrt_len_tokens": lambda states: states.sum(axis=0) / math.sqrt(len(states)),
    "pooling_mode_weightedmean_tokens": lambda states: np.average(states, axis=0, weights=range(1, len(states) + 1)),
    "pooling_mode_lasttoken": lambda states: states[-1],
}
