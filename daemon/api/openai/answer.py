"""From a job to the bytes of an OpenAI answer, whole or streamed."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api.errors import ErrorAnswer
from mlxd.daemon.api.inference import Inference, Job
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.openai.printer import Printer, Wording, fingerprint
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.sse import comment, frame
from mlxd.daemon.api.streaming import collect, stream_answer
from mlxd.engines.types import RequestOutput

DONE = b"data: [DONE]\n\n"


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
        return await stream_answer(request, inference, ChunkWriter(printer))
    answer = printer.whole(await collect(inference))
    return json_answer(answer)


class ChunkWriter:
    """Chunks as server-sent events, with comments while the request waits."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer

    def write(self, choice: int, output: RequestOutput) -> bytes:
        """The chunks for one output."""
        return b"".join(map(frame, self._printer.chunks(choice, output)))

    def beat(self, progress: str) -> bytes:
        """A comment."""
        return comment(progress)

    def end(self) -> bytes:
        """OpenAI's last event."""
        return DONE

    def fail(self, error: ErrorAnswer) -> bytes:
        """The error, framed."""
        return b"data: " + error.envelope() + b"\n\n"
