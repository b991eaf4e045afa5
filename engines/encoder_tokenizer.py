"""From texts to an encoder's inputs, on any thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mlxd.engines.embedding_types import EncoderInput
from mlxd.engines.errors import InputTooLong, InvalidRequest
from mlxd.engines.tokenizer import Tokenizer

# Characters that are made into tokens in one call, which takes some 250 bytes of memory for each.
LONG_TEXT = 250_000


class NoFastTokenizer(Exception):
    """The folder has no tokenizer that the tokenizers library runs."""


class EncoderTokenizer(Tokenizer):
    """The tokenizer of a model that takes at most `max_length` tokens; `lowers` says that texts are put in lower case.

    Raises NoFastTokenizer. What a tokenizer.json says of padding and truncation is the habit of whoever saved it, and
    is not followed.
    """

    def __init__(self, wrapper: Any, max_length: int, *, lowers: bool = False) -> None:
        super().__init__(wrapper)
        self._max_length = max_length
        self._lowers = lowers
        # not every tokenizer of transformers is one of the tokenizers library
        fast: Any = getattr(wrapper._tokenizer, "backend_tokenizer", None)  # noqa: SLF001 - mlx-lm does not pass it on
        if fast is None:
            raise NoFastTokenizer("the tokenizer is none of the tokenizers library; a tokenizer.json is needed")
        self._fast = fast
        self._fast.no_truncation()
        self._fast.no_padding()
        self._special = fast.num_special_tokens_to_add(False)
        self._special_of_pair = fast.num_special_tokens_to_add(True)

    def inputs(self, texts: Sequence[str], *, truncate: bool) -> list[EncoderInput]:
        """Each text with the model's special tokens. One that is too long is cut at its end with `truncate`, else it
        raises InputTooLong. Raises InvalidRequest for text that is no Unicode.
        """
        inputs = []
        for number, encoding in enumerate(self._encodings(texts)):
            self._fit(encoding, self._special, number, truncate=truncate)
            inputs.append(_input(self._fast.post_process(encoding, None, True)))
        return inputs

    def pairs(self, first: str, seconds: Sequence[str], *, truncate: bool) -> list[EncoderInput]:
        """`first` with each of the others, as a cross-encoder takes them. With `truncate` the second text is cut to the
        room beside the first.

        Raises InputTooLong, with number -1 for a first text that leaves no room, and InvalidRequest.
        """
        [one] = self._encodings([first])
        beside = len(one) + self._special_of_pair
        if beside >= self._max_length:
            raise InputTooLong(-1, beside, self._max_length)
        pairs = []
        for number, other in enumerate(self._encodings(seconds)):
            self._fit(other, beside, number, truncate=truncate)
            pairs.append(_input(self._fast.post_process(one, other, True)))
        return pairs

    def _fit(self, encoding: Any, beside: int, number: int, *, truncate: bool) -> None:
        """Cut an encoding to the room that there is beside so many other tokens, or raise InputTooLong."""
        if len(encoding) + beside <= self._max_length:
            return
        if not truncate:
            raise InputTooLong(number, len(encoding) + beside, self._max_length)
        encoding.truncate(max(0, self._max_length - beside))

    def _encodings(self, texts: Iterable[str]) -> Iterator[Any]:
        """The tokens of each text, without special ones. They take much more memory than text: a few at a time."""
        group: list[str] = []
        size = 0
        for text in texts:
            if size + len(text) > LONG_TEXT:
                yield from self._encoded(group)
                group, size = [], 0
            if len(text) > LONG_TEXT:
                yield self._begun(text)
            else:
                group.append(text)
                size += len(text)
        yield from self._encoded(group)

    def _begun(self, text: str) -> Any:
        """The first tokens of a long text, more than the model takes if there are; a word that is cut counts as two."""
        pieces: list[Any] = []
        for start in range(0, len(text), LONG_TEXT):
            pieces += self._encoded([text[start : start + LONG_TEXT]])
            if sum(map(len, pieces)) > self._max_length:
                break
        return type(pieces[0]).merge(pieces, True)

    def _encoded(self, texts: Sequence[str]) -> list[Any]:
        shown = [text.lower() for text in texts] if self._lowers else list(texts)
        try:
            encodings: list[Any] = self._fast.encode_batch(shown, add_special_tokens=False)
        except (TypeError, UnicodeError) as error:
            raise InvalidRequest("the text is no Unicode: it has lone surrogates in it") from error
        return encodings


def _input(encoding: Any) -> EncoderInput:
    return EncoderInput(array("i", encoding.ids), sum(map(bool, encoding.type_ids)))
