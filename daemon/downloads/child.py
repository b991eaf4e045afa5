"""The process of a download, from the daemon's side: started, listened to, killed and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial

import msgspec
import structlog

from mlxd.daemon.downloads.messages import Done, Failed, Job, Message
from mlxd.engines.child_process import ending, module_command

log = structlog.stdlib.get_logger(__name__)

# Seconds without a message after which a process counts as stuck: a disk may take a while to write out a large file.
SILENCE = 600.0
# Seconds that a killed process gets to end.
KILL_PATIENCE = 5.0

_LAST_LINES = 5
_LINE_BYTES = 1 << 16
_READ = 1 << 12

Messages = AsyncIterator[Message]
Download = Callable[[Job], AbstractAsyncContextManager[Messages]]
"""Begins a download: its messages, the last of which is Done or Failed. Leaving the block ends it."""


class NotStarted(Exception):
    """The system has no process to give."""


@asynccontextmanager
async def child(job: Job, silence: float = SILENCE) -> AsyncIterator[Messages]:
    """A download in a process of its own, so that ending it harms nothing. Raises NotStarted.

    After `silence` seconds without a message it has failed.
    """
    process = await _start()
    assert process.stdin is not None, "it was asked for"
    assert process.stderr is not None, "it was asked for"
    said: deque[str] = deque(maxlen=_LAST_LINES)
    errors = asyncio.create_task(_keep(process.stderr, said), name="pull.stderr")
    try:
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        async with aclosing(_messages(process, silence, partial(_crashed, process, errors, said))) as messages:
            yield messages
    finally:
        await _end(process, errors)


async def _start() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *module_command("mlxd.daemon.downloads", os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            env=_environ(os.environ),
            process_group=0,  # what a terminal sends is for the daemon
        )
    except OSError as error:
        raise NotStarted(str(error)) from error


async def _messages(
    process: asyncio.subprocess.Process, silence: float, crashed: Callable[[], Awaitable[Failed]]
) -> AsyncGenerator[Message, None]:
    assert process.stdout is not None, "it was asked for"
    try:
        while line := await asyncio.wait_for(process.stdout.readline(), silence):
            message = msgspec.json.decode(line, type=Message)
            yield message
            if isinstance(message, Done | Failed):
                await _wait(process)
                return
    except TimeoutError:
        yield Failed("stalled", f"the process of the download gave no sign of life for {silence:g} s")
    else:
        yield await crashed()


async def _crashed(process: asyncio.subprocess.Process, errors: asyncio.Task[None], said: deque[str]) -> Failed:
    """What to say of a process that closed its output without a last word."""
    async with asyncio.timeout(KILL_PATIENCE):
        code = await process.wait()
        await errors
    log.warning("pull.crashed", pid=process.pid, code=code, output=list(said))
    return Failed("crashed", f"the process of the download {ending(code)}; pull again, it goes on")


def _environ(own: Mapping[str, str]) -> dict[str, str]:
    """This process's own, but nobody is told who downloads, and no request is written out."""
    return {**own, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_DEBUG": "0"}


async def _keep(stream: asyncio.StreamReader, said: deque[str]) -> None:
    """The last lines of what the process writes; a longer one in pieces."""
    while data := await stream.read(_READ):
        said.extend(data.decode("utf-8", "replace").splitlines())


async def _end(process: asyncio.subprocess.Process, errors: asyncio.Task[None]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await _wait(process)
    errors.cancel()
    await asyncio.wait({errors})


async def _wait(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_PATIENCE):
            await process.wait()
