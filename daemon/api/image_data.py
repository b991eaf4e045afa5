"""From what was sent of an image to the bytes of its file."""

from __future__ import annotations

import binascii
import re

from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.sent_images import SentImage
from mlxd.daemon.image_formats import FORMATS, MEDIA_TYPES, media_type_of

# Characters that are decoded at a time, four for three bytes: the decoder keeps the GIL from the event loop.
_PIECE = 1 << 18
_HEAD = re.compile(r"data:(?P<type>[^;,]*)(?P<options>(?:;[^;,]*)*),", re.IGNORECASE)
_LONGEST_HEAD = 256
_ALIASES = {"image/jpg": "image/jpeg"}
_SHOWN = 60


def inline_size(image: SentImage) -> int:
    """About how many bytes the file of an image has that is not remote."""
    return len(image.sent) * 3 // 4


def decode_inline(image: SentImage, max_bytes: int) -> bytes:
    """The file of an image that is not remote, which it lets go of. Raises InvalidField that names its place."""
    place, text, declared = image.param, image.take(), image.media_type
    if image.is_url:
        declared, text = _data_of(text, place)
    named = None if declared is None else _media_type(declared, place)
    data = checked_file(_decode(text, place, max_bytes), place)
    if named not in (None, media_type_of(data)):
        raise InvalidField(f"{place}: the file is {media_type_of(data)}, not {named}; name what it is", place)
    return data


def checked_file(data: bytes, place: str) -> bytes:
    """These bytes, if they begin as an image does. Raises InvalidField."""
    if not data:
        raise InvalidField(f"{place}: the image is empty", place)
    if media_type_of(data) is None:
        raise InvalidField(f"{place}: this is no image that can be read; send a {FORMATS} file", place)
    return data


def too_large(place: str, max_bytes: int) -> InvalidField:
    """The refusal of an image of more bytes than that."""
    message = f"the image has more than {max_bytes} bytes (images.max_bytes); make it smaller"
    return InvalidField(f"{place}: {message}", place)


def _data_of(url: str, place: str) -> tuple[str, str]:
    """The media type and the data of a data URL."""
    head = _HEAD.match(url[:_LONGEST_HEAD])
    if head is None:
        message = "expected a data URL such as data:image/png;base64, and then the file"
        raise InvalidField(f"{place}: {message}", place)
    if head["options"].rpartition(";")[2].strip().lower() != "base64":
        raise InvalidField(f"{place}: expected the data URL to say ;base64, before its data", place)
    return head["type"], url[head.end() :]


def _media_type(declared: str, place: str) -> str:
    """The media type that a client names, one of MEDIA_TYPES."""
    name = declared.strip().lower()
    name = _ALIASES.get(name, name)
    if name not in MEDIA_TYPES:
        shown = declared.strip()[:_SHOWN] or "none"
        raise InvalidField(f"{place}: expected the media type {_either(MEDIA_TYPES)}, got {shown}", place)
    return name


def _decode(text: str, place: str, max_bytes: int) -> bytes:
    padding = len(text[-2:]) - len(text[-2:].rstrip("="))
    if len(text) // 4 * 3 - padding > max_bytes:
        raise too_large(place, max_bytes)
    if len(text) % 4 or text.find("=", 0, len(text) - padding) >= 0:
        raise _not_base64(place)
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    try:
        return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)
    except ValueError:
        raise _not_base64(place) from None


def _not_base64(place: str) -> InvalidField:
    message = "expected standard base64, with its padding and without spaces or line ends"
    return InvalidField(f"{place}: {message}", place)


def _either(names: tuple[str, ...]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1]))
