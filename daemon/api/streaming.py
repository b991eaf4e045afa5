"""Sends an answer as it is generated, in whatever framing a facade has."""

from __future__ import annotations

from contextlib import aclosing
from typing import Protocol

import structlog
from aiohttp import web

from mlxd.daemon.api.errors import ErrorAnswer, explain
from mlxd.daemon.api.inference import Inference
from mlxd.daemon.api.interleave import Indexed
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.sse import SSE, EventStream, kept_alive
from mlxd.engines.types import RequestOutput

log = structlog.stdlib.get_logger(__name__)


class StreamWriter(Protocol):
    """Makes the bytes of one stream, framed; none where there is nothing to say."""

    def write(self, choice: int, output: RequestOutput) -> bytes:
        """What an output of one choice adds."""

    def beat(self, progress: str) -> bytes:
        """A sign of life after a silence; `progress` says what the request waits for."""

    def end(self) -> bytes:
        """What follows the last output of the last choice."""

    def fail(self, error: ErrorAnswer) -> bytes:
        """The last event of a stream that failed after its first byte."""


async def stream_answer(
    request: web.Request, inference: Inference, writer: StreamWriter, content_type: str = SSE
) -> web.StreamResponse:
    """Run a job and stream its answer. Raises what fails before the first byte."""
    stream = EventStream(request, content_type)
    try:
        await _send_all(stream, inference, writer, services_of(request).settings.server.keepalive_interval)
    except ConnectionResetError:
        log.info("stream.client_gone")
    # After the first byte no status can say it: whatever it is becomes the stream's last event.
    except Exception as error:
        if not stream.started:
            raise
        answer = explain(error, request_id_of(request))
        services_of(request).metrics.traffic.refused(answer.code)
        await _send_last(stream, writer.fail(answer))
    return stream.response


async def collect(inference: Inference) -> list[Indexed]:
    """All outputs of all choices of a job. Raises what its `outputs` raises."""
    async with aclosing(inference.outputs()) as outputs:
        return [output async for output in outputs]


async def _send_all(stream: EventStream, inference: Inference, writer: StreamWriter, interval: float | None) -> None:
    async with (
        kept_alive(stream, interval, lambda: writer.beat(inference.progress())),
        aclosing(inference.outputs()) as outputs,
    ):
        async for choice, output in outputs:
            data = writer.write(choice, output)
            if data:
                await stream.write(data)
    await stream.end(writer.end())


async def _send_last(stream: EventStream, event: bytes) -> None:
    try:
        await stream.write(event)
    except ConnectionResetError:
        log.info("stream.client_gone")
