"""Fetches images that a request names by URL, from the hosts that the configuration allows.

1. Only hosts of `images.remote_hosts` are asked, at each redirect anew.
2. A host that "*" alone allows must have a public address, and the address that was checked is the one connected to.
3. Redirects, bytes and the time for all of it have bounds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import aiohttp
import structlog
from yarl import URL

from mlxd.daemon.api.image_data import checked_file, too_large
from mlxd.daemon.api.public_addresses import NotPublic, PublicResolver, is_public, plain_host
from mlxd.daemon.api.refusals import InvalidField

log = structlog.stdlib.get_logger(__name__)

ANY_HOST = "*"
# Seconds for one image, from the look-up of its host to its last byte.
FETCH_TIMEOUT = 15.0
MAX_REDIRECTS = 4

# Connections of one request at a time.
_AT_A_TIME = 16
_PIECE = 65_536
_OK = 200
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "mlxd"}
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
_SHOWN = 100
_INSIDE = "its host is not public, and such a host must be in images.remote_hosts by its own name"


class ImageFetcher:
    """Fetches images of at most `max_bytes` bytes from these hosts; see `fetching`."""

    def __init__(self, session: aiohttp.ClientSession, hosts: Collection[str], max_bytes: int) -> None:
        self._session = session
        self._hosts = frozenset(map(plain_host, hosts))
        self._max_bytes = max_bytes

    async def fetch(self, url: str, place: str) -> bytes:
        """The image file at a URL. Raises InvalidField that names its place, for whatever goes wrong there."""
        started = time.monotonic()
        target = self._allowed(url, place)
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                data = await self._follow(target, place)
        except TimeoutError:
            raise _failed(place, target, f"it did not come within {FETCH_TIMEOUT:g} s") from None
        log.info("image.fetched", host=target.host, bytes=len(data), seconds=round(time.monotonic() - started, 3))
        return checked_file(data, place)

    async def _follow(self, target: URL, place: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            try:
                async with self._session.get(target, allow_redirects=False) as answer:
                    if answer.status not in _REDIRECTS:
                        return await self._read(answer, target, place)
                    location = answer.headers.get("Location", "")
            except aiohttp.ClientError as error:
                raise _failed(place, target, _reason(error)) from error
            target = self._allowed(_joined(target, location), place)
        raise _failed(place, target, f"it redirects more than {MAX_REDIRECTS} times")

    async def _read(self, answer: aiohttp.ClientResponse, target: URL, place: str) -> bytes:
        if answer.status != _OK:
            raise _failed(place, target, f"the answer has status {answer.status}")
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _failed(place, target, "the answer is compressed, which was not asked for")
        data = bytearray()
        async for piece in answer.content.iter_chunked(_PIECE):
            data += piece
            if len(data) > self._max_bytes:
                raise too_large(place, self._max_bytes)
        return bytes(data)

    def _allowed(self, url: str, place: str) -> URL:
        """The URL, if it is one that may be fetched. Raises InvalidField."""
        try:
            target = URL(url)
        except ValueError:
            raise _no_url(place) from None
        host = plain_host(target.raw_host or "")
        if target.scheme not in ("http", "https") or not host:
            raise _no_url(place)
        if target.user is not None or target.password is not None:
            raise InvalidField(f"{place}: a URL with a user or a password is not fetched; leave them out", place)
        if host in self._hosts:
            return target
        if ANY_HOST not in self._hosts:
            raise _not_listed(place, host, any_listed=bool(self._hosts))
        if _is_inside(host):
            raise _failed(place, target, _INSIDE)
        return target


@asynccontextmanager
async def fetching(hosts: Collection[str], max_bytes: int) -> AsyncIterator[ImageFetcher]:
    """What fetches the images of one request; no cookie, credential or proxy of the daemon's surroundings is used."""
    connector = aiohttp.TCPConnector(
        resolver=PublicResolver(hosts), use_dns_cache=False, limit=_AT_A_TIME, force_close=True
    )
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=_HEADERS,
        auto_decompress=False,
        timeout=_NO_TIMEOUT,
    ) as session:
        yield ImageFetcher(session, hosts, max_bytes)


def _is_inside(host: str) -> bool:
    """Whether a host is an IP address that is not public; names are looked up first."""
    try:
        return not is_public(host)
    except ValueError:
        return False


def _joined(target: URL, location: str) -> str:
    try:
        return str(target.join(URL(location)))
    except ValueError:
        return ""


def _reason(error: aiohttp.ClientError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return _INSIDE if isinstance(error.os_error, NotPublic) else "its host has no address"
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        return "its host does not prove that it is the one"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "its host takes no connection"
    if isinstance(error, aiohttp.InvalidURL):
        return "its URL cannot be asked for"
    return f"the answer breaks off or is no HTTP ({type(error).__name__})"


def _failed(place: str, target: URL, reason: str) -> InvalidField:
    return InvalidField(f"{place}: the image at {_shown(target.host or '')} was not fetched: {reason}", place)


def _no_url(place: str) -> InvalidField:
    return InvalidField(f"{place}: expected a data URL, or one with http or https and a host", place)


def _not_listed(place: str, host: str, *, any_listed: bool) -> InvalidField:
    if any_listed:
        message = f"no images are fetched from {_shown(host)}; send a data URL, or add the host to images.remote_hosts"
    else:
        message = "no images are fetched here; send a data URL, or name the host in images.remote_hosts"
    return InvalidField(f"{place}: {message}", place)


def _shown(host: str) -> str:
    return host if len(host) <= _SHOWN else f"{host[:_SHOWN]}…"
