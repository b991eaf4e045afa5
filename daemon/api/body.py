"""From the bytes of a request's body to typed data. Whatever is sent, the answer is a refusal, never a crash."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from mlxd.daemon.api.refusals import BodyTooLarge, InvalidField, UnsupportedMediaType
from mlxd.daemon.api.services import services_of

T = TypeVar("T")

MAX_DEPTH = 64
# Decoded, each array or object costs hundreds of bytes and microseconds, of which the body shows two bytes.
MAX_CONTAINERS = 500_000
# Seconds for which a client may send nothing in the middle of its body.
BODY_STALL = 60.0
# Bytes in a second that a body comes with at least, taken over all of it, once so many seconds have passed: a client
# that sends a byte now and then must not hold a request for ever.
LEAST_RATE = 1000
RATE_GRACE = 60.0
BOM = b"\xef\xbb\xbf"

_JSON_TYPE = re.compile(r"(application|text)/(json|[a-z0-9.!#$&^_-]+\+json)")
_PLACED = re.compile(r"(?P<text>.*) - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_RAW = web.RequestKey("raw_body", bytes)
_SHOWN = 300
# Bytes of JSON that are read and checked in a moment, whatever they hold; more is read beside the event loop.
_QUICK = 65_536
# zlib's word for the largest window, and gzip and zlib headers told apart by themselves
_ANY_HEADER = zlib.MAX_WBITS | 32


async def read_object(request: web.Request, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in the body; with `optional` no body is an empty one. Of equal names the last one counts.

    Raises UnsupportedMediaType, BodyTooLarge and InvalidField.
    """
    return await read_as(request, lambda body: body, optional=optional)


async def read_as(request: web.Request, parse: Callable[[dict[str, Any]], T], *, optional: bool = False) -> T:
    """What `parse` makes of the JSON object in the body, on a thread if that may take a while.

    Raises what `read_object` and `parse` raise.
    """

    def read(data: bytes) -> T:
        return parse({} if optional and not data.strip() else decode_object(data))

    return await with_body(request, read)


async def with_body(request: web.Request, read: Callable[[bytes], T], *, keep: bool = False) -> T:
    """What `read` makes of the bytes of the body, on a thread if that may take a while. With `keep` the next one to
    read them gets them too.

    Raises UnsupportedMediaType, BodyTooLarge, InvalidField and what `read` raises.
    """
    services = services_of(request)
    limit = services.settings.server.max_body
    encoding = request.headers.get("Content-Encoding")
    raw = request.pop(_RAW, None)
    if raw is None:
        raw = await _raw(request, limit)
    if keep:
        request[_RAW] = raw
    if encoding is None and len(raw) <= _QUICK:
        return read(raw)
    async with services.bodies:
        return await asyncio.to_thread(lambda: read(unpack(raw, encoding, limit)))


@contextmanager
def body_kept(request: web.Request) -> Iterator[None]:
    """Whoever reads the body inside does not keep the next one from it."""
    raw = request.get(_RAW)
    try:
        yield
    finally:
        if raw is not None:
            request[_RAW] = raw


async def _raw(request: web.Request, limit: int) -> bytes:
    if (request.content_length or 0) > limit:
        raise _too_large(f"has {request.content_length} bytes, at most {limit} are taken")
    if request.body_exists:
        _check_type(request.headers.get("Content-Type"))
    return await received(request.content.readany, limit)


def decode_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises InvalidField for anything else, for too many parts and too deep nesting."""
    if raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS:
        raise InvalidField(f"the body has more than {MAX_CONTAINERS} opening brackets")
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


def unpack(raw: bytes, encoding: str | None, limit: int) -> bytes:
    """The body as it was before `encoding` (of the Content-Encoding header), of at most `limit` bytes.

    Raises UnsupportedMediaType, BodyTooLarge and InvalidField.
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity" or not raw:
        return raw
    if name not in ("gzip", "x-gzip", "deflate"):
        raise UnsupportedMediaType(f"Content-Encoding {name[:_SHOWN]} is not taken; send gzip, or the body as it is")
    unpacker = zlib.decompressobj(_ANY_HEADER)
    try:
        data = unpacker.decompress(raw, limit + 1)
    except zlib.error as error:
        raise InvalidField(f"the body is not {name}: {error}") from None
    if len(data) > limit:
        raise _too_large(f"unpacks to more than {limit} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidField(f"the body is not one whole {name} stream")
    return data


def convert(value: object, kind: type[T]) -> T:
    """Check `value` against a type. Raises InvalidField with the place of the first mismatch as `param`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refused(error) from None


async def received(read: Callable[[], Awaitable[bytes]], limit: int) -> bytes:
    """All that `read` gives, of at most `limit` bytes, until it gives nothing. Raises BodyTooLarge and InvalidField."""
    body = bytearray()
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        while True:
            stalls, too_slow = loop.time() + BODY_STALL, started + RATE_GRACE + len(body) / LEAST_RATE
            async with asyncio.timeout_at(min(stalls, too_slow)):
                piece = await read()
            if not piece:
                return bytes(body)
            body += piece
            if len(body) > limit:
                raise _too_large(f"has more than {limit} bytes")
    except web.RequestPayloadError as error:
        raise InvalidField(f"the body did not arrive as announced: {error}") from error
    except TimeoutError:
        bounds = f"{BODY_STALL:g} s without a byte, or fewer than {LEAST_RATE} bytes/s over all of it"
        raise InvalidField(f"the body comes too slowly: {bounds}") from None


def _too_large(what: str) -> BodyTooLarge:
    return BodyTooLarge(f"the body {what}; send less or raise server.max_body")


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
    unknown = _UNKNOWN.fullmatch(text)
    if unknown is not None:
        path, text = f"{path}.{unknown['name'][:_SHOWN]}".lstrip("."), "it is not a field of this request; leave it out"
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    text, path = text.replace("`", ""), path.removesuffix("[...]")
    return InvalidField(f"{path}: {text[:1].lower()}{text[1:]}" if path else text, path or None)
