"""The HTTP server around the application: JSON answers even to what is no HTTP, and bounds for idle connections."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http import RawRequestMessage

from mlxd.daemon.api.error_shapes import to_response
from mlxd.daemon.api.middleware import REQUEST_ID_HEADER, request_id_of
from mlxd.daemon.api.refusals import ApiError, InvalidField

# Seconds for which a connection may stay without a whole request head; clients keep theirs up to 90 s.
IDLE_TIMEOUT = 120.0
# Open files that connections leave to models, logs and the memory probe.
SPARE_FILES = 128

_SHOWN = 200

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connection(web.RequestHandler):
    """One connection. What aiohttp answers and logs by itself becomes an error like any other."""

    __slots__ = ("_server",)

    def __init__(self, server: _Server) -> None:
        # Bodies are unpacked by their reader, which bounds them: a broken one would break the connection here.
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # it means none
            keepalive_timeout=IDLE_TIMEOUT,
            auto_decompress=False,
        )
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or hang up when there are too many."""
        super().connection_made(transport)
        if len(self._server.connections) > most_connections():
            self.force_close()

    def data_received(self, data: bytes) -> None:
        """Take bytes. A body whose chunks break off in nonsense ends there, rather than when its reader gives up."""
        super().data_received(data)
        request = self._current_request
        if request is None or not self._messages or request.content.is_eof():
            return
        if not isinstance(self._messages[-1][0], RawRequestMessage):
            request.content.set_exception(web.RequestPayloadError("its chunks cannot be read"))

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
            error: Exception = InvalidField(f"the request cannot be read: {said[:_SHOWN]}")
        else:
            error = exc if isinstance(exc, Exception) else RuntimeError(message or "a handler timed out")
        response = _answer(error, request)
        response.headers[REQUEST_ID_HEADER] = request_id_of(request)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log a bug. A body that breaks off was answered for already, where it was read."""
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)


class _Server(web.Server):
    """Makes connections for the application that `inner` serves."""

    def __init__(self, inner: web.Server) -> None:
        super().__init__(
            _refusing(inner.request_handler),
            request_factory=inner.request_factory,
            # Without it a handler that only waits is not told that its client left.
            handler_cancellation=True,
        )

    def __call__(self) -> web.RequestHandler:
        return _Connection(self)


class _Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server())


def make_runner(application: web.Application, shutdown_timeout: float) -> web.AppRunner:
    """What serves the application; at the end handlers get `shutdown_timeout` seconds to write their last bytes."""
    return _Runner(application, shutdown_timeout=shutdown_timeout)


def most_connections() -> float:
    """How many connections are taken, by the limit of open files as it is now; loading MLX changes it."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if files == resource.RLIM_INFINITY else max(files // 2, files - SPARE_FILES)


def _refusing(handler: Answer) -> Answer:
    """Answer in JSON what is refused before the application's middlewares see it."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPExpectationFailed as error:
            return _answer(ApiError(f"{error.text}; only 100-continue is understood"), request)

    return answer


def _answer(error: Exception, request: web.BaseRequest) -> web.Response:
    return to_response(error, request_id_of(request))
