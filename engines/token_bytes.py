"""The exact bytes of single tokens, which may be part of a character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
_MAX_ID = 2**32


class TokenBytes:
    """Reads tokens of a Hugging Face tokenizer, or of what stands for one; safe on any thread.

    Byte-level BPE and SentencePiece vocabularies are read exactly. A token of any other kind gives what it decodes
    to alone, in UTF-8.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Fast tokenizers know which ids are tokens, and may have some above their number.
        self._size = _MAX_ID if tokenizer.is_fast else len(tokenizer)
        self._added: Mapping[int, str] = {
            int(token): str(added.content) for token, added in tokenizer.added_tokens_decoder.items()
        }
        kinds = set(_decoder_kinds(tokenizer))
        self._letters = _byte_of_letter() if "ByteLevel" in kinds else None
        self._is_sentencepiece = bool(kinds & {"Metaspace", "ByteFallback"})
        self._has_byte_tokens = "ByteFallback" in kinds

    def __call__(self, token: int) -> bytes:
        """The bytes of the token's text, special tokens as they are written; b"" for an id that is no token."""
        added = self._added.get(token)
        if added is not None:
            return added.encode()
        if not 0 <= token < self._size:
            return b""
        text = self._tokenizer.convert_ids_to_tokens(token)
        if not text:
            return b""
        if self._letters is not None:
            return _letters_to_bytes(text, self._letters)
        if self._is_sentencepiece:
            return self._sentencepiece_bytes(text)
        return str(self._tokenizer.decode([token])).encode()

    def _sentencepiece_bytes(self, text: str) -> bytes:
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return text.replace(_SPACE, " ").encode()


def _decoder_kinds(tokenizer: Any) -> Iterator[str]:
    """The types of a fast tokenizer's decoder and of its parts; none for a slow one."""
    decoder = tokenizer.backend_tokenizer.decoder if tokenizer.is_fast else None
    if decoder is None:
        return
    state = json.loads(decoder.__getstate__())
    for part in (state, *state.get("decoders", ())):
        yield str(part["type"])


def _letters_to_bytes(text: str, letters: Mapping[str, int]) -> bytes:
    try:
        return bytes(letters[letter] for letter in text)
    except KeyError:
        return text.encode()


def _byte_of_letter() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable letter: those that are one themselves, then from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + i): byte for i, byte in enumerate(others)}}
