"""From the bytes of a request's body to typed data. Whatever is sent, the answer is a refusal, never a crash."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from mlxd.daemon.api.refusals import BodyTooLarge, InvalidField, UnsupportedMediaType

T = TypeVar("T")

MAX_DEPTH = 64
BOM = b"\xef\xbb\xbf"

_JSON_TYPE = re.compile(r"(application|text)/(json|[a-z0-9.!#$&^_-]+\+json)")
_PLACED = re.compile(r"(?P<text>.*) - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_SHOWN = 300


async def read_object(request: web.Request, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in the body; with `optional` no body is an empty one. Of equal names the last one counts.

    Raises UnsupportedMediaType, BodyTooLarge and InvalidField.
    """
    limit = request.client_max_size
    if limit and (request.content_length or 0) > limit:
        raise BodyTooLarge(f"the body has {request.content_length} bytes, at most {limit} are taken (server.max_body)")
    if request.body_exists:
        _check_type(request.headers.get("Content-Type"))
    try:
        raw = await request.read()
    except web.RequestPayloadError as error:
        raise InvalidField(f"the body did not arrive as announced: {error}") from error
    if optional and not raw.strip():
        return {}
    return decode_object(raw)


def decode_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises InvalidField for anything else, and for data nested too deeply."""
    try:
        value = msgspec.json.decode(raw.removeprefix(BOM))
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError as error:
        raise _refused(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidField(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidField("expected a JSON object in the body")
    _check_depth(value)
    return value


def convert(value: object, kind: type[T]) -> T:
    """Check `value` against a type. Raises InvalidField with the place of the first mismatch as `param`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refused(error) from None


def _check_type(content_type: str | None) -> None:
    if content_type is None:
        return
    media, _, options = content_type.lower().partition(";")
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]+)", options)
    if charset is not None and charset[1] not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(f"expected UTF-8, got charset {charset[1]}")
    if not _JSON_TYPE.fullmatch(media.strip()):
        raise UnsupportedMediaType(f"expected Content-Type: application/json, got {content_type[:_SHOWN]}")


def _check_depth(value: object) -> None:
    layer = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for container in layer:
            elements = container.values() if isinstance(container, dict) else container
            inner += [element for element in elements if isinstance(element, dict | list)]  # type: ignore[attr-defined]
        if not inner:
            return
        layer = inner
    raise _too_deep()


def _too_deep() -> InvalidField:
    return InvalidField(f"the body is nested more than {MAX_DEPTH} levels deep")


def _refused(error: msgspec.ValidationError) -> InvalidField:
    placed = _PLACED.fullmatch(str(error))
    text, path = (placed["text"], placed["path"]) if placed is not None else (str(error), "")
    missing = _MISSING.fullmatch(text)
    if missing is not None:
        path, text = f"{path}.{missing['name']}".lstrip("."), "it is required"
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    text, path = text.replace("`", ""), path.removesuffix("[...]")
    return InvalidField(f"{path}: {text[:1].lower()}{text[1:]}" if path else text, path or None)
