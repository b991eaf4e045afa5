"""From a job to the bytes of an OpenAI answer, whole or streamed."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
import structlog
from aiohttp import web

from mlxd.daemon.api.errors import to_sse_event
from mlxd.daemon.api.inference import Inference, Job
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.openai_printer import Printer, Wording, fingerprint
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.sse import EventStream, Heartbeat, with_heartbeat

log = structlog.stdlib.get_logger(__name__)


async def respond(request: web.Request, job: Job, name: str | None, wording: Wording) -> web.StreamResponse:
    """Run a job and answer with it, streamed if its options say so; `name` is what the client called the model."""
    services = services_of(request)
    inference = Inference(services, job)
    printer = Printer(
        wording=wording,
        inference=inference,
        model=name or job.resolved.model,
        created=int(services.wall_clock()),
        fingerprint=fingerprint(services, job.resolved.model),
        include_usage=job.options.include_usage,
        choices=job.choices,
        n=job.options.n,
    )
    if job.options.stream:
        return await _stream(request, inference, printer)
    return await _whole(inference, printer)


async def _whole(inference: Inference, printer: Printer) -> web.Response:
    async with aclosing(inference.outputs()) as outputs:
        received = [output async for output in outputs]
    answer = printer.whole(received)
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


async def _stream(request: web.Request, inference: Inference, printer: Printer) -> web.StreamResponse:
    stream = EventStream(request)
    interval = services_of(request).settings.server.keepalive_interval
    try:
        await _send_all(stream, inference, printer, interval)
    except ConnectionResetError:
        log.info("stream.client_gone")
    # After the first byte no status can say it: whatever it is becomes the stream's last event.
    except Exception as error:
        if not stream.started:
            raise
        await _send_last(stream, to_sse_event(error, request_id_of(request)))
    return stream.response


async def _send_all(stream: EventStream, inference: Inference, printer: Printer, interval: float | None) -> None:
    async with aclosing(with_heartbeat(inference.outputs(), interval)) as outputs:
        async for item in outputs:
            if isinstance(item, Heartbeat):
                await stream.comment(inference.progress())
            elif chunks := list(printer.chunks(*item)):
                await stream.send(chunks)
    await stream.done()


async def _send_last(stream: EventStream, event: bytes) -> None:
    try:
        await stream.write(event)
    except ConnectionResetError:
        log.info("stream.client_gone")
