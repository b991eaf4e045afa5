"""A worker process without a model that does what a test wants: `python scripted_worker.py FD BEHAVIOUR`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlxd.engines.types import EngineStats, ModelInfo, RequestState, RequestStatus, Usage
from mlxd.engines.worker import to_daemon, to_worker
from mlxd.engines.worker.channel import Channel
from mlxd.engines.worker.forms import ErrorForm
from mlxd.engines.worker.protocol import protocol

FACTS = to_daemon.TokenizerFacts([0], 100, True, False, None, False, False, False)


def command(behaviour: str) -> Callable[[int], Sequence[str]]:
    """The command of such a worker."""
    return lambda fd: [sys.executable, "-I", __file__, str(fd), behaviour]


def _ready(channel: Channel) -> None:
    channel.send(to_daemon.Ready(ModelInfo(100, 1), FACTS))


def serves(channel: Channel, messages: Iterator[Any]) -> None:
    """Is ready at once, and goes when it is told to."""
    _ready(channel)
    _until_closed(channel, messages)


def loads_once_retuned(channel: Channel, messages: Iterator[Any]) -> None:
    """Is ready once it has other limits; a load that is cancelled fails."""
    for message in messages:
        if isinstance(message, to_worker.CancelLoad):
            channel.send(to_daemon.LoadFailed("cancelled", "as asked"))
            return
        if isinstance(message, to_worker.RetuneTo):
            _ready(channel)
            _until_closed(channel, messages)
            return


def closes_its_end(channel: Channel, messages: Iterator[Any]) -> None:
    """Is ready, closes its end of the socket, and stays."""
    _ready(channel)
    os.close(int(sys.argv[1]))
    while True:
        time.sleep(60)


def confuses_orders(channel: Channel, messages: Iterator[Any]) -> None:
    """Ends its first request with an error that nobody gave."""
    _ready(channel)
    for message in messages:
        if isinstance(message, to_worker.AddText):
            channel.send(to_daemon.Step([to_daemon.Item(message.number, error=ErrorForm("", order=99))]))


def dies_with_the_third(channel: Channel, messages: Iterator[Any]) -> None:
    """Is at work on the first request when it dies, and has noted that the others wait."""
    _ready(channel)
    statuses: list[RequestStatus] = []
    for message in messages:
        if isinstance(message, to_worker.AddText):
            state = RequestState.WAITING if statuses else RequestState.DECODING
            statuses.append(RequestStatus(message.id, state, 0.0, Usage(1)))
            channel.send(to_daemon.Note(EngineStats(), statuses))
        if len(statuses) == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def stays_when_closed(channel: Channel, messages: Iterator[Any]) -> None:
    """Is ready, and ends for nothing but a signal."""
    _ready(channel)
    for _ in messages:
        pass


def floods(channel: Channel, messages: Iterator[Any]) -> None:
    """Prints and logs without a pause until it is closed."""
    _ready(channel)

    def print_on() -> None:
        while True:
            os.write(2, b"out of luck\n" * 1000)

    def log_on() -> None:
        while True:
            channel.send(to_daemon.LogLine(30, "scripted", "again", b"{}"))

    for flood in (print_on, log_on):
        threading.Thread(target=flood, daemon=True).start()
    _until_closed(channel, messages)


def _until_closed(channel: Channel, messages: Iterator[Any]) -> None:
    for message in messages:
        if isinstance(message, to_worker.EndAll) and message.close:
            channel.send(to_daemon.Gone())
            return


def main() -> None:
    fd = int(sys.argv[1])
    channel = Channel(socket.socket(fileno=fd))
    channel.send(to_daemon.Hello(protocol()))
    messages = channel.receive()
    assert isinstance(next(messages), to_worker.Start)
    globals()[sys.argv[2]](channel, messages)
    os._exit(0)


if __name__ == "__main__":
    main()
