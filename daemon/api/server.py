"""The HTTP server around the application: JSON answers even to what is no HTTP, and bounds for idle connections."""

from __future__ import annotations

import asyncio
import math
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http import RawRequestMessage

from mlxd.daemon.api.error_shapes import to_response
from mlxd.daemon.api.failed_attempts import ATTEMPTS, FailedAttempts
from mlxd.daemon.api.middleware import REQUEST_ID_HEADER, SHOWN, request_id_of
from mlxd.daemon.api.refusals import TurnedAway
from mlxd.daemon.api.sse import WRITE_TIMEOUT

# Connections that wait to be taken, which is also how many the event loop takes at a time.
BACKLOG = 128
# Open files that connections leave to others: 128 for models, logs and the memory probe, and those of connections that
# are too many, of which four lots are open at a time until the first of them is closed.
SPARE_FILES = 128 + 4 * BACKLOG


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a client gets: `idle` without sending anything, clients keep connections up to 90 s; `head` from
    the first byte of a request's head to its last; `unread` without reading anything of an answer that is whole."""

    idle: float = 120.0
    head: float = 30.0
    unread: float = WRITE_TIMEOUT


Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connection(web.RequestHandler):
    """One connection. What aiohttp answers and logs by itself becomes an error like any other."""

    __slots__ = ("_head_end", "_server", "_unread_end")

    def __init__(self, server: _Server) -> None:
        # Bodies are unpacked by their reader, which bounds them: a broken one would break the connection here.
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # it means none
            keepalive_timeout=server.patience.idle,
            auto_decompress=False,
        )
        self._server = server
        self._head_end: asyncio.TimerHandle | None = None
        self._unread_end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection; when there are too many, one without a request has to go, or this one."""
        assert isinstance(transport, asyncio.Transport)
        # Between requests `pause_writing` is called once anything at all is left unsent: only that tells of a client
        # that reads nothing.
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)
        if len(self._server.connections) > most_connections():
            self._server.oldest_idle(self).force_close()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered or has come."""
        return self._waiter is not None and not self._waiter.done()

    def data_received(self, data: bytes) -> None:
        """Take bytes. A body whose chunks break off in nonsense ends there, rather than when its reader gives up."""
        super().data_received(data)
        self._time_head()
        request = self._current_request
        if request is None or not self._messages or request.content.is_eof():
            return
        if not isinstance(self._messages[-1][0], RawRequestMessage):
            request.content.set_exception(web.RequestPayloadError("its chunks cannot be read"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._stop_timing()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Hold the handler up while its client does not read what was sent."""
        super().pause_writing()
        if self.transport is not None:
            self._wait_for_reader(self.transport)

    def resume_writing(self) -> None:
        """The client has read all."""
        self._stop_waiting_for_reader()
        super().resume_writing()

    def _wait_for_reader(self, transport: asyncio.Transport) -> None:
        # A handler that still runs writes a stream, which sees to its reader itself.
        unread = transport.get_write_buffer_size() if self._current_request is None else None
        patience = self._server.patience.unread
        self._unread_end = self._loop.call_later(patience, self._check_reader, transport, unread)

    def _check_reader(self, transport: asyncio.Transport, before: int | None) -> None:
        """Hang up if nothing was read; closing alone would wait for a reader for ever, too."""
        if before is not None and transport.get_write_buffer_size() >= before:
            transport.abort()
        else:
            self._wait_for_reader(transport)

    def _stop_waiting_for_reader(self) -> None:
        if self._unread_end is not None:
            self._unread_end.cancel()
            self._unread_end = None

    def _time_head(self) -> None:
        """A head that has begun has to end: sent byte by byte, heads would hold all connections that are taken."""
        if not self.is_idle:
            self._stop_timing()
        elif self._head_end is None:
            self._head_end = self._loop.call_later(self._server.patience.head, self.force_close)

    def _stop_timing(self) -> None:
        if self._head_end is not None:
            self._head_end.cancel()
            self._head_end = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never reached the application: bytes that are no HTTP, or a fault outside of all handlers."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun")
        if status < 500:  # noqa: PLR2004 - the client's fault
            said = (message or "").partition("\n")[0].rstrip(":")
            response = self._server.turn_away(request, f"the request cannot be read: {said[:SHOWN]}")
        else:
            error = exc if isinstance(exc, Exception) else RuntimeError(message or "a handler timed out")
            response = to_response(error, request_id_of(request))
        response.headers[REQUEST_ID_HEADER] = request_id_of(request)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log a bug. A body that breaks off was answered for already, where it was read."""
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)


class _Server(web.Server):
    """Makes connections for the application that `inner` serves."""

    def __init__(self, inner: web.Server, patience: Patience, attempts: FailedAttempts) -> None:
        self.patience = patience
        self._attempts = attempts
        super().__init__(
            self._refusing(inner.request_handler),
            request_factory=inner.request_factory,
            # Without it a handler that only waits is not told that its client left.
            handler_cancellation=True,
        )

    def __call__(self) -> web.RequestHandler:
        return _Connection(self)

    def oldest_idle(self, newest: web.RequestHandler) -> web.RequestHandler:
        """The oldest connection without a request, `newest` if all have one: whoever opens many keeps nobody out."""
        idle = (each for each in self.connections if isinstance(each, _Connection) and each.is_idle)
        return next(idle, newest)

    def turn_away(self, request: web.BaseRequest, message: str) -> web.Response:
        """The answer to what the application never saw."""
        error = TurnedAway(message)
        self._attempts.note(request.remote, error)
        return to_response(error, request_id_of(request))

    def _refusing(self, handler: Answer) -> Answer:
        """Answer in JSON what is refused before the application's middlewares see it."""

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            try:
                with _writing(request.transport):
                    return await handler(request)
            except web.HTTPExpectationFailed as error:
                return self.turn_away(request, f"{(error.text or '')[:SHOWN]}; only 100-continue is understood")

        return answer


@contextmanager
def _writing(transport: asyncio.Transport | None) -> Iterator[None]:
    """While a handler runs some bytes may stay unsent: a stream's small writes must not wait for the client."""
    if transport is None:
        yield
        return
    transport.set_write_buffer_limits()
    try:
        yield
    finally:
        transport.set_write_buffer_limits(high=0)


class _Runner(web.AppRunner):
    def __init__(self, application: web.Application, shutdown_timeout: float, patience: Patience) -> None:
        super().__init__(application, shutdown_timeout=shutdown_timeout)
        self._patience = patience

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._patience, self.app[ATTEMPTS])


def make_runner(
    application: web.Application, shutdown_timeout: float, patience: Patience = Patience()
) -> web.AppRunner:
    """What serves the application; at the end handlers get `shutdown_timeout` seconds to write their last bytes."""
    return _Runner(application, shutdown_timeout, patience)


def most_connections() -> float:
    """How many connections are taken, by the limit of open files as it is now; loading MLX changes it."""
    files = _most_files()
    return max(files // 2, files - SPARE_FILES)


def backlog() -> int:
    """BACKLOG, or fewer where even the connections that are too many could take all files."""
    return int(min(BACKLOG, _most_files() // 16))


def _most_files() -> float:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if files == resource.RLIM_INFINITY else files
