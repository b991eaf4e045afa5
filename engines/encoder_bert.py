"""BERT and the RoBERTa family on mlx.nn, under the names that their weight files use. Attention is to all tokens."""

# mlx.nn comes without types.
# mypy: allow-subclassing-any, no-warn-return-any

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import BaseModelArgs

from mlxd.engines.errors import LoadError, LoadFailure

BERT_TYPES = ("bert",)
ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")
# Heads that nobody asks, and what is no weight.
_UNUSED = re.compile(r"(cls|lm_head|qa_outputs)\..*|.*position_ids")
_PREFIX = re.compile(r"(bert|roberta|model)\.")
_MOST_LAYERS = 1000
# MLX counts in 32 bits.
_MOST = 2**31
_ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "gelu": nn.gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
}


@dataclass
class BertArgs(BaseModelArgs):
    """A config.json. Raises LoadError for what cannot be followed."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    vocab_size: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    pad_token_id: int | None = None
    position_embedding_type: str = "absolute"
    is_decoder: bool = False

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        for name in (*sizes, "max_position_embeddings", "vocab_size", "type_vocab_size"):
            if type(getattr(self, name)) is not int or not 0 < getattr(self, name) < _MOST:
                raise LoadError(LoadFailure.BAD_FILES, f"config.json: {name} is no whole number above 0, or too large")
        if self.hidden_size % self.num_attention_heads or self.num_hidden_layers > _MOST_LAYERS:
            raise LoadError(LoadFailure.BAD_FILES, "config.json: its heads do not divide its size, or too many layers")
        if self.position_embedding_type not in ("absolute", None) or self.is_decoder:
            message = f"positions of type {str(self.position_embedding_type)[:100]}, or a decoder, are not served"
            raise LoadError(LoadFailure.UNSUPPORTED, f"config.json: {message}")
        if self.hidden_act not in _ACTIVATIONS:
            message = f"config.json: hidden_act {str(self.hidden_act)[:100]} is not known"
            raise LoadError(LoadFailure.UNSUPPORTED, message)
        if self.positions < 1:
            raise LoadError(LoadFailure.BAD_FILES, "config.json: pad_token_id leaves no position")

    @property
    def first_position(self) -> int:
        """RoBERTa counts positions from behind its padding token, which is 1 unless said otherwise."""
        if self.model_type not in ROBERTA_TYPES:
            return 0
        return (1 if self.pad_token_id is None else self.pad_token_id) + 1

    @property
    def positions(self) -> int:
        """Tokens that a text may have."""
        return self.max_position_embeddings - self.first_position


class _Embeddings(nn.Module):
    def __init__(self, args: BertArgs) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(args.vocab_size, args.hidden_size)
        self.position_embeddings = nn.Embedding(args.max_position_embeddings, args.hidden_size)
        self.token_type_embeddings = nn.Embedding(args.type_vocab_size, args.hidden_size)
        self.LayerNorm = nn.LayerNorm(args.hidden_size, eps=args.layer_norm_eps)
        self._first_position = args.first_position
        self._types = args.type_vocab_size

    def __call__(self, tokens: mx.array, types: mx.array) -> mx.array:
        positions = mx.arange(tokens.shape[1]) + self._first_position
        # models with one type know no second text
        kinds = self.token_type_embeddings(mx.minimum(types, self._types - 1))
        return self.LayerNorm(self.word_embeddings(tokens) + self.position_embeddings(positions) + kinds)


class _SelfAttention(nn.Module):
    def __init__(self, args: BertArgs) -> None:
        super().__init__()
        self._heads = args.num_attention_heads
        self.query = nn.Linear(args.hidden_size, args.hidden_size)
        self.key = nn.Linear(args.hidden_size, args.hidden_size)
        self.value = nn.Linear(args.hidden_size, args.hidden_size)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        queries, keys, values = (
            part(x).reshape(*x.shape[:2], self._heads, -1).swapaxes(1, 2) for part in (self.query, self.key, self.value)
        )
        scale = queries.shape[-1] ** -0.5
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
        return out.swapaxes(1, 2).reshape(x.shape)


class _Residual(nn.Module):
    """A linear layer, what was there before, and the norm over both."""

    def __init__(self, inputs: int, args: BertArgs) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, args.hidden_size)
        self.LayerNorm = nn.LayerNorm(args.hidden_size, eps=args.layer_norm_eps)

    def __call__(self, x: mx.array, before: mx.array) -> mx.array:
        return self.LayerNorm(self.dense(x) + before)


class _Attention(nn.Module):
    def __init__(self, args: BertArgs) -> None:
        super().__init__()
        self.self = _SelfAttention(args)
        self.output = _Residual(args.hidden_size, args)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        return self.output(self.self(x, mask), x)


class _Dense(nn.Module):
    """One linear layer called `dense` in the files."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def __call__(self, x: mx.array) -> mx.array:
        return self.dense(x)


class _Layer(nn.Module):
    def __init__(self, args: BertArgs) -> None:
        super().__init__()
        self.attention = _Attention(args)
        self.intermediate = _Dense(args.hidden_size, args.intermediate_size)
        self.output = _Residual(args.intermediate_size, args)
        self._activation = _ACTIVATIONS[args.hidden_act]

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        x = self.attention(x, mask)
        return self.output(self._activation(self.intermediate(x)), x)


class _Stack(nn.Module):
    def __init__(self, args: BertArgs) -> None:
        super().__init__()
        self.layer = [_Layer(args) for _ in range(args.num_hidden_layers)]

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class BertEncoder(nn.Module):
    """Hidden states of all tokens: (rows, width) of ids, types and what is no padding to (rows, width, hidden)."""

    def __init__(self, args: BertArgs) -> None:
        super().__init__()
        self.args = args
        self.embeddings = _Embeddings(args)
        self.encoder = _Stack(args)

    def __call__(self, tokens: mx.array, types: mx.array, real: mx.array) -> mx.array:
        return self.encoder(self.embeddings(tokens, types), real[:, None, None, :])

    def sanitize(self, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The weights of this model under its names; heads that are not used are left out."""
        named = {_PREFIX.sub("", name, count=1) if _PREFIX.match(name) else name: w for name, w in weights.items()}
        return {name: weight for name, weight in named.items() if not self._leaves_out(name)}

    def _leaves_out(self, name: str) -> bool:
        return bool(_UNUSED.fullmatch(name)) or name.startswith(("pooler.", "classifier."))


class BertCrossEncoder(BertEncoder):
    """One score (a logit) for each row: the first token's state through BERT's pooler and a linear layer."""

    def __init__(self, args: BertArgs) -> None:
        super().__init__(args)
        self.pooler = _Dense(args.hidden_size, args.hidden_size)
        self.classifier = nn.Linear(args.hidden_size, 1)

    def __call__(self, tokens: mx.array, types: mx.array, real: mx.array) -> mx.array:
        states = super().__call__(tokens, types, real)
        return self.classifier(mx.tanh(self.pooler(states[:, 0])))

    def _leaves_out(self, name: str) -> bool:
        return bool(_UNUSED.fullmatch(name))


class _RobertaHead(_Dense):
    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.out_proj = nn.Linear(size, 1)

    def __call__(self, x: mx.array) -> mx.array:
        return self.out_proj(mx.tanh(super().__call__(x)))


class RobertaCrossEncoder(BertEncoder):
    """One score (a logit) for each row: the first token's state through RoBERTa's head of two layers."""

    def __init__(self, args: BertArgs) -> None:
        super().__init__(args)
        self.classifier = _RobertaHead(args.hidden_size)

    def __call__(self, tokens: mx.array, types: mx.array, real: mx.array) -> mx.array:
        return self.classifier(super().__call__(tokens, types, real)[:, 0])

    def _leaves_out(self, name: str) -> bool:
        return bool(_UNUSED.fullmatch(name)) or name.startswith("pooler.")


def model_class(config: Mapping[str, Any], *, scores: bool) -> type[BertEncoder]:
    """The class for a config of BERT's or RoBERTa's family."""
    if not scores:
        return BertEncoder
    return BertCrossEncoder if config["model_type"] in BERT_TYPES else RobertaCrossEncoder
