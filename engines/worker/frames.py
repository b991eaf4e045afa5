"""Messages as msgpack in frames over a socket; nothing here imports MLX.

Lists of token ids cross as bytes (little-endian int32), data without a form of its own (chats, tools) as JSON text.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

HEADER = 4
"""Bytes before each message that tell its length, big-endian."""
MOST_BYTES = 1 << 30
"""Of one message; what claims to be longer is none."""


class BadFrame(Exception):
    """What came is no message."""


class Frames:
    """Bytes in, messages of one direction out."""

    def __init__(self, messages: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(messages, dec_hook=_decoded)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are complete now. Raises BadFrame, after which there is nothing more to be had."""
        buffer = self._buffer
        buffer += data
        messages = []
        start = 0
        while len(buffer) - start >= HEADER:
            length = int.from_bytes(buffer[start : start + HEADER], "big")
            if length > MOST_BYTES:
                raise BadFrame(f"a message of {length} bytes")
            end = start + HEADER + length
            if len(buffer) < end:
                break
            messages.append(self._decode(bytes(memoryview(buffer)[start + HEADER : end])))
            start = end
        del buffer[:start]
        return messages

    def _decode(self, frame: bytes) -> Any:
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadFrame(str(error)) from error


def frame(message: msgspec.Struct) -> bytes:
    """A message as it crosses. Raises ValueError for one that is too long, or has in it what cannot cross."""
    try:
        body = msgspec.msgpack.encode(message, enc_hook=_encoded)
    except (NotImplementedError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"a {type(message).__name__} does not cross: {error}") from error
    if len(body) > MOST_BYTES:
        raise ValueError(f"a message of {len(body)} bytes")
    return len(body).to_bytes(HEADER, "big") + body


def to_bytes(tokens: Iterable[int]) -> bytes:
    """Token ids."""
    ids = array("i", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def from_bytes(data: bytes) -> array[int]:
    """Token ids."""
    ids = array("i", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def text_to_bytes(text: str) -> bytes:
    """Text that may have lone surrogates in it, of which msgpack's strings have none."""
    return text.encode("utf-8", "surrogatepass")


def text_from_bytes(data: bytes) -> str:
    """What `text_to_bytes` was given."""
    return data.decode("utf-8", "surrogatepass")


def sayable(text: str) -> str:
    """Text for people, without lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def to_json(value: object, **options: Any) -> bytes:
    """JSON text that holds any string, lone surrogates too, in hardly more bytes than its strings have."""
    return text_to_bytes(json.dumps(value, ensure_ascii=False, **options))


def from_json(data: bytes) -> Any:
    """The value of JSON text."""
    return json.loads(text_from_bytes(data))


def _encoded(value: object) -> object:
    if isinstance(value, Path):
        return os.fsencode(value)
    if isinstance(value, Sequence):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} has no form to cross in")


def _decoded(kind: type, value: Any) -> Any:
    if issubclass(kind, Path):
        return Path(os.fsdecode(value))
    raise NotImplementedError(f"{kind.__name__} has no form to cross in")
