"""Small image files, and images as each API takes them."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side: int = 2, shade: int = 0, *, padding: int = 0) -> bytes:
    """A square of one grey; `padding` bytes follow its end."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes([shade]) * side) * side)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks + bytes(padding)


PNG = png()
# what each begins with is all that the API looks at
JPEG = b"\xff\xd8\xff\xe0" + bytes(20)
GIF = b"GIF89a" + bytes(20)
WEBP = b"RIFF\x20\0\0\0WEBPVP8 " + bytes(20)
FILES = {"image/png": PNG, "image/jpeg": JPEG, "image/gif": GIF, "image/webp": WEBP}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, kind: str | None = None) -> str:
    """Of the type that the file is, unless said; of PNG's for what is none."""
    kind = kind or next((name for name, file in FILES.items() if file == data), "image/png")
    return f"data:{kind};base64,{b64(data)}"


def openai_image(data: bytes = PNG, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data), **fields}}


def openai_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def anthropic_image(data: bytes = PNG, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": b64(data)}}


def responses_image(data: bytes = PNG, **fields: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(data), **fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
