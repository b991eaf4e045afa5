"""Talks to the daemon over HTTP, and turns everything that can go wrong there into a failure of the command."""

# aiohttp is imported when a connection is made: usage errors and help come without its start-up time.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from mlxd.daemon.cli.address import DaemonAddress
from mlxd.daemon.cli.answers import describe_error, failure_from
from mlxd.daemon.cli.failures import CommandFailed, ConnectionLost, NotReachable

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 30.0
"""Seconds that a call may take which only reads."""

_FIRST_ERROR = 400
_FIRST_REDIRECT = 300


def model_path(model: str, action: str = "", *, below: str = "models") -> str:
    """The admin path of a model, or of what is told of it `below` another; ids keep their slashes."""
    return f"/admin/{below}/{quote(model, safe='/')}" + (f"/{action}" if action else "")


class DaemonClient:
    """Connections to one daemon, closed at the end of `async with`."""

    def __init__(self, address: DaemonAddress) -> None:
        self.url = address.url
        self._headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session; nothing is sent yet."""
        import aiohttp

        self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections; the daemon takes that as a cancel of what still runs."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> Any:
        """The JSON at this path."""
        return await self.call("GET", path, timeout=READ_TIMEOUT)

    async def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Send a request and give the JSON of its answer; `timeout` in seconds, None waits for ever.

        Raises ApiFailure for a refusal, NotReachable, and CommandFailed for an answer that is no answer.
        """
        status, answer = await self.answer(method, path, body, timeout=timeout)
        if status >= _FIRST_ERROR:
            raise failure_from(status, answer, self.url)
        return answer

    async def answer(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> tuple[int, Any]:
        """Status and JSON, whatever the status is."""
        async with self._response(method, path, body, timeout) as response:
            return response.status, _parsed(response.status, await response.read(), self.url)

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, Any] | None = None, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of a streamed answer as they come, to a POST if there is a body.

        Leaving the block early closes the connection. Reading raises ConnectionLost when the other side ends it early.
        """
        method = "GET" if body is None else "POST"
        async with self._response(method, path, body, None, headers) as response:
            if response.status >= _FIRST_ERROR:
                answer = _parsed(response.status, await response.read(), self.url)
                raise failure_from(response.status, answer, self.url)
            if response.content_type != "text/event-stream":
                raise CommandFailed(f"{self.url} answered {response.content_type} instead of a stream; is that mlxd?")
            yield response.content.iter_any()

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout: float | None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp
        from yarl import URL

        if self._session is None:
            raise RuntimeError("the client is used outside its `async with`")
        limit = aiohttp.ClientTimeout(total=timeout, connect=CONNECT_TIMEOUT)
        url = URL(self.url + path, encoded=True)
        with _connection_errors(self.url):
            async with self._session.request(
                method, url, json=body, headers=headers, timeout=limit, allow_redirects=False
            ) as response:
                yield response


@contextmanager
def _connection_errors(url: str) -> Iterator[None]:
    import aiohttp

    help_text = "start it with `mlxd serve`, or say where it is with --url or $MLXD_URL"
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        raise NotReachable(f"no daemon answers at {url} ({_reason(error.os_error)}); {help_text}") from error
    except TimeoutError as error:
        raise NotReachable(f"the daemon at {url} did not answer in time; {help_text}") from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise ConnectionLost(f"the daemon at {url} closed the connection; its log says why") from error
    except aiohttp.ClientError as error:
        raise CommandFailed(f"{url} gave a broken answer: {describe_error(error)}; is that mlxd?") from error


def _reason(error: OSError) -> str:
    # asyncio replaces the system's words; negative numbers are those of name resolution
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)


def _parsed(status: int, raw: bytes, url: str) -> Any:
    if not _FIRST_REDIRECT <= status < _FIRST_ERROR:
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            pass
    raise CommandFailed(f"{url} answered {status} without JSON; is that mlxd?")
