"""A rank of a host where something is wrong: `fake_rank.py FAULT` speaks its protocol as far as that lets it.

As a remote shell it is given a host and a command, which it runs, or does not, by the name of the host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

from mlxd.engines.sharded.follower import main as follow
from mlxd.engines.sharded.orders import Join, Order, Prepare, Reach
from mlxd.engines.sharded.pipe import Pipe
from mlxd.engines.sharded.rendezvous import Place
from mlxd.engines.sharded.reports import Failed, Loaded, Prepared, Reached
from mlxd.engines.sharded.sameness import sameness


def main(host: str, command: str) -> None:
    match host:
        case "refuses":
            sys.exit("ssh: connect to host refuses port 22: Connection refused")
        case "hangs":
            threading.Event().wait()
        case "garbage":
            os.write(1, b"Last login: Tue Dec  1 on ttys000\n" * 100)
            threading.Event().wait()
        case "older" | "other-files" | "full" | "walled":
            _answer(host)
        case "no-model":
            # what is there for this process is not there for that one
            hidden = f"mount -t tmpfs none {os.environ['MODELS']} && {command}"
            os.execvp("unshare", ["unshare", "-m", "sh", "-c", hidden])
        case "breaks":
            _break_later()
        case "dies-joining" | "never-joins" | "waits" | "stays":
            _hold_join(host)
        case "dies-second" | "fails-first":
            _be_lost(host)
        case "tight":
            # room for its weights, and from then on for hardly anything
            rooms = chain([10**9], repeat(2000))
            follow(0, lambda: next(rooms))
        case _:
            os.execvp("sh", ["sh", "-c", command])


def _break_later() -> None:
    """A rank whose tenth step raises."""
    from mlxd.engines.row_group import RowGroup

    steps = count(1)
    whole = RowGroup.step

    def step(group: RowGroup, chunk: int | None) -> Any:
        if next(steps) == 10:
            raise RuntimeError("out of memory, say")
        return whole(group, chunk)

    RowGroup.step = step  # type: ignore[method-assign]
    follow(0)


def _answer(host: str) -> None:
    """As a rank does that has another MLX, or other files."""
    pipe = Pipe(0, 1, Order)
    prepare = next(pipe.receive())
    assert isinstance(prepare, Prepare)
    same = sameness(prepare.config.path)
    same |= {"older": {"mlx": "0.20.0"}, "other-files": {"files": "0" * 32}}.get(host, {})
    pipe.send(Prepared(same, "127.0.0.1:1", 1 if host == "full" else None))
    threading.Event().wait()


def _hold_join(host: str) -> None:
    """One that waits when it is told to join, `stays` even when it is told to leave; the others connect, so that rank
    0's MLX waits for them too, and do no more.
    """
    pipe = Pipe(0, 1, Order)
    orders = pipe.receive()
    prepare = next(orders)
    assert isinstance(prepare, Prepare)
    place = Place(prepare.shards, prepare.rank)
    pipe.send(Prepared(sameness(prepare.config.path), place.address))
    reach = next(order for order in orders if isinstance(order, Reach))
    place.reach(reach.addresses)
    place.be_reached()
    place.leave()
    pipe.send(Reached())
    next(order for order in orders if isinstance(order, Join))
    if host == "stays":
        threading.Event().wait()
    with contextlib.nullcontext() if host == "waits" else _joined(reach.addresses[0]):
        if host == "dies-joining":
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in orders:
            pass


def _joined(there: str) -> socket.socket:
    """A connection to a rank, whose MLX listens from some moment on."""
    address, _, port = there.rpartition(":")
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((address, int(port)))


def _be_lost(host: str) -> None:
    """One that fails when it is told to load, and one that is killed once the other has said so."""
    pipe = Pipe(0, 1, Order)
    orders = pipe.receive()
    pipe.send(Loaded(0))
    next(order for order in orders if isinstance(order, Join))
    if host == "fails-first":
        pipe.send(Failed("internal", "the connection to a peer was lost"))
    with Path(os.environ["FAILED"]).open("w" if host == "fails-first" else "r"):
        pass
    if host == "dies-second":
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in orders:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:3])
