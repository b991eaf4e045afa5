"""Tokenizers of models that reason and call tools, on mlx-lm's real wrapper, and text streams fed piece by piece."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from mlxd.engines.backend import TextPiece, TextStream
from mlxd.engines.text_stream import text_stream
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import ChatFormat, Request, SamplingParams

THINK = ("<think>", "</think>")
END = "<|im_end|>"
WEATHER: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TOOLS = (WEATHER,)


def wrapper(
    added: Sequence[str] = (), parser: str | None = None, template: str | None = TOOL_TEMPLATE, **options: Any
) -> TokenizerWrapper:
    """A byte-level tokenizer with a token for each byte, and each added text as one token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: token for token, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, normalized=False)])
    backend.add_tokens([AddedToken(text, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
    fast.chat_template = template
    if parser is not None:
        module = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
        options = {
            "tool_parser": module.parse_tool_call,
            "tool_call_start": module.tool_call_start,
            "tool_call_end": module.tool_call_end,
            **options,
        }
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, **options)


def thinker(parser: str | None = "json_tools", **options: Any) -> TokenizerWrapper:
    """The tokenizer of a model that marks its reasoning."""
    return wrapper(ANSWER_MARKERS, parser, **options)


class Pieces:
    """A detokenizer whose token number n is the nth piece of a text."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces
        self._text = ""

    @property
    def last_segment(self) -> str:
        text, self._text = self._text, ""
        return text

    def add_token(self, token: int) -> None:
        self._text += self._pieces[token]

    def finalize(self) -> None:
        """Nothing is held back here."""


class Speaker(Tokenizer):
    """A tokenizer of a model that says certain pieces."""

    def __init__(self, wrapper: TokenizerWrapper, pieces: Sequence[str]) -> None:
        super().__init__(wrapper)
        self._pieces = pieces

    @property
    def size(self) -> int:
        return len(self._pieces)

    def detokenizer(self) -> Pieces:
        return Pieces(self._pieces)


def stream_of(
    wrapper: TokenizerWrapper,
    pieces: Sequence[str],
    *,
    prompt: str = "Hi",
    tools: Sequence[Mapping[str, Any]] = TOOLS,
    max_calls: int | None = None,
    **sampling: Any,
) -> TextStream:
    """A chat's stream, for which token n is the nth piece."""
    tokens = tuple(wrapper.encode(prompt, add_special_tokens=False))
    request = Request("r", tokens, SamplingParams(**sampling), chat=ChatFormat(tuple(tools), max_calls))
    return text_stream(Speaker(wrapper, pieces), request)


def real_stream(wrapper: TokenizerWrapper, **sampling: Any) -> TextStream:
    """A chat's stream with the tokenizer's own tokens."""
    return text_stream(Tokenizer(wrapper), Request("r", (1,), SamplingParams(**sampling), chat=ChatFormat(TOOLS)))


def outputs(stream: TextStream, count: int) -> list[TextPiece]:
    """What a stream gives for so many tokens, as the scheduler asks for it."""
    given = []
    for token in range(count):
        given.append(stream.push(token))
        if stream.stopped:
            return given
    return [*given, stream.finish()]


def joined(pieces: Iterable[TextPiece]) -> TextPiece:
    return sum(pieces, TextPiece())


def read(wrapper: TokenizerWrapper, pieces: str | Sequence[str], **options: Any) -> TextPiece:
    """The whole of an answer; a text is one piece."""
    parts = [pieces] if isinstance(pieces, str) else pieces
    return joined(outputs(stream_of(wrapper, parts, **options), len(parts)))
