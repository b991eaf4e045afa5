"""Rebuilds a byte-level BPE tokenizer from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mlxd.engines.gguf_errors import CorruptGguf, MissingMetadata, UnsupportedGguf
from mlxd.engines.gguf_file import Metadata

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_PREFIX = "tokenizer.ggml."
# roles of single tokens in the file, and their names in tokenizer_config.json
_ROLES: Mapping[str, str | None] = {
    "bos": "bos_token",
    "eos": "eos_token",
    "eot": None,
    "eom": None,
    "unknown": "unk_token",
    "padding": "pad_token",
}
# Tokens that end an answer even where the file's own end token is another one.
_END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """A rebuilt tokenizer, its tokenizer_config.json, and the ids that start and end a text."""

    tokenizer: Tokenizer
    settings: Mapping[str, Any]
    bos_id: int | None
    end_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Style:
    """How one family of tokenizers works; the file may say otherwise about the first token.

    `ignore_merges`: a word that is a token is taken whole, whether or not merges lead to it.
    """

    split: Callable[[], Any]
    adds_bos: bool = False
    ignore_merges: bool = False
    normalizer: Callable[[], Any] | None = None


def _bytes() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _by(*patterns: str) -> Callable[[], Any]:
    return lambda: pre_tokenizers.Sequence([*map(_split, patterns), _bytes()])


def _digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _default() -> Any:
    return _by(_PUNCTUATION, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")()


_LLAMA3_STYLE = _Style(_by(_LLAMA3), adds_bos=True, ignore_merges=True)
_QWEN2_STYLE = _Style(_by(_QWEN2), normalizer=normalizers.NFC)
STYLES: Mapping[str, _Style] = {
    "default": _Style(_default),
    "gpt-2": _Style(_gpt2),
    "smollm": _Style(_digits),
    "starcoder": _Style(_digits),
    "refact": _Style(_digits),
    "llama-bpe": _LLAMA3_STYLE,
    "llama3": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "falcon3": _LLAMA3_STYLE,
    "qwen2": _QWEN2_STYLE,
    "tekken": _Style(_by(_TEKKEN), adds_bos=True, ignore_merges=True),
}


def build_tokenizer(metadata: Metadata, vocab_size: int, context_length: int) -> GgufTokenizer:
    """Rebuild the tokenizer; `vocab_size` is the rows of the embedding, `context_length` in tokens.

    Raises UnsupportedGguf for another tokenizer model or splitting rule, MissingMetadata and CorruptGguf.
    """
    style = _style(metadata)
    tokens, types = _tokens(metadata, vocab_size)
    ids = {name: _token_id(metadata, name, len(tokens)) for name in _ROLES}
    bos_id, eos_id = ids["bos"], ids["eos"]
    if eos_id is None:
        raise MissingMetadata(f"{_PREFIX}eos_token_id")
    control = {index for index, kind in enumerate(types) if kind == _CONTROL} | {eos_id}
    tokenizer = _bpe(tokens, metadata.strings(f"{_PREFIX}merges"), style)
    tokenizer.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in sorted(control)])
    words = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    adds_bos = metadata.find(f"{_PREFIX}add_bos_token", bool, style.adds_bos)
    if adds_bos and bos_id is not None:
        tokenizer.post_processor = _starts_with(tokens[bos_id], bos_id)
    names = {name: tokens[index] for name, index in ids.items() if index is not None}
    ends = {index for index in control if tokens[index] in _END_TOKENS}
    ends |= {index for name in ("eos", "eot", "eom") if (index := ids[name]) is not None}
    settings = _settings(metadata, names, context_length, adds_bos=adds_bos and bos_id is not None)
    return GgufTokenizer(tokenizer, settings, bos_id, tuple(sorted(ends)))


def _settings(metadata: Metadata, names: Mapping[str, str], context_length: int, *, adds_bos: bool) -> dict[str, Any]:
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        "add_bos_token": adds_bos,
        **{key: names[role] for role, key in _ROLES.items() if key and role in names},
    }
    template = metadata.find("tokenizer.chat_template", str, None)
    return settings if template is None else {**settings, "chat_template": template}


def _style(metadata: Metadata) -> _Style:
    model = metadata.get(f"{_PREFIX}model", str)
    if model != "gpt2":
        raise UnsupportedGguf(f"the tokenizer model {model!r} is not supported, only gpt2 (byte-level BPE)")
    name = metadata.find(f"{_PREFIX}pre", str, "default")
    if name not in STYLES:
        raise UnsupportedGguf(f"the pre-tokenizer {name!r} is not supported; supported are {', '.join(STYLES)}")
    return STYLES[name]


def _tokens(metadata: Metadata, vocab_size: int) -> tuple[list[str], list[int]]:
    tokens = metadata.strings(f"{_PREFIX}tokens")
    if len(set(tokens)) < len(tokens):
        raise CorruptGguf("two tokens are the same")
    if len(tokens) > vocab_size:
        raise CorruptGguf(f"the file has {len(tokens)} tokens for an embedding of {vocab_size} rows")
    types = metadata.find(f"{_PREFIX}token_type", list, [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise CorruptGguf(f"the file has {len(tokens)} tokens but {len(types)} token types")
    return tokens, types


def _token_id(metadata: Metadata, name: str, count: int) -> int | None:
    index = metadata.find(f"{_PREFIX}{name}_token_id", int, None)
    if index is not None and not 0 <= index < count:
        raise CorruptGguf(f"{_PREFIX}{name}_token_id is {index}, but there are {count} tokens")
    return index


def _bpe(tokens: list[str], merges: list[str], style: _Style) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not vocab.keys() >= {left, right, left + right}:
            raise CorruptGguf(f"the merge {merge!r} does not lead from tokens to a token")
        pairs.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, fuse_unk=False, ignore_merges=style.ignore_merges))
    if style.normalizer is not None:
        tokenizer.normalizer = style.normalizer()
    tokenizer.pre_tokenizer = style.split()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _starts_with(first: str, index: int) -> Any:
    return processors.TemplateProcessing(
        single=[first, "$A"], pair=[first, "$A", first, "$B:1"], special_tokens=[(first, index)]
    )
