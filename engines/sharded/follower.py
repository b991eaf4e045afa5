"""The process of a rank other than 0: it does what it is told, in order, and ends with rank 0."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from setproctitle import setproctitle

from mlxd.engines.backend import Backend, mlx_backend
from mlxd.engines.blas_preload import BlasShare
from mlxd.engines.child_process import ORPHANED, belong_to
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.sharded.orders import Join, Leave, Order, Ping, Prepare, Reach
from mlxd.engines.sharded.pipe import Pipe
from mlxd.engines.sharded.rendezvous import Place
from mlxd.engines.sharded.reports import Beat, Failed, Prepared, Reached
from mlxd.engines.sharded.sameness import sameness
from mlxd.engines.worker.frames import sayable

if TYPE_CHECKING:
    from mlxd.engines.sharded.mirror import Mirror

BEAT = 0.5
"""Seconds between two beats of a rank, and between two pings of rank 0."""
ALONE = 30.0
"""Seconds without a word of rank 0 after which its host, or the way to it, counts as gone."""

# Seconds without an order after which buffers that are free are given back.
IDLE = 2.0
_FAILED = 1

Measure = Callable[[], int | None]
"""Gives the bytes that this process may still take on its host, None where nobody measures."""
Kind = TypeVar("Kind")


def main(parent: int, measure: Measure = lambda: None) -> None:
    """Follow rank 0, which speaks on the standard input; never returns. `parent` is its process, 0 on another host."""
    if parent:
        belong_to(parent)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    follower = Follower(_standard_pipe(), measure)
    try:
        follower.run()
    # whatever it is, rank 0 has to know, and threads in native code must not hold up the end
    except BaseException as error:  # noqa: BLE001
        follower.fail(error)
    os._exit(_FAILED)


def _standard_pipe() -> Pipe:
    """Standard input and output, which nothing else in this process gets to see."""
    pipe = Pipe(os.dup(0), os.dup(1), Order)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return pipe


class Follower:
    """Reads on one thread, beats on another, and works on the main one."""

    def __init__(self, pipe: Pipe, measure: Measure) -> None:
        self._pipe = pipe
        self._measure = measure
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._heard = threading.Event()

    def run(self) -> None:
        """Prepare, join, load and follow. Raises whatever goes wrong, after which this rank must end."""
        threading.Thread(target=self._read, name="orders", daemon=True).start()
        threading.Thread(target=self._expect, name="alone", daemon=True).start()
        prepare = self._expected(Prepare)
        shards, rank, config = prepare.shards, prepare.rank, prepare.config
        setproctitle(f"mlxd: {config.name} ({shards.title(rank)})")
        os.environ.update(shards.variables)
        place = Place(shards, rank)
        self._pipe.send(Prepared(sameness(config.path), place.address, self._measure()))
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()
        # imported before the others wait for this rank: a process that joins can do nothing else
        backend, loading = mlx_backend(), importlib.import_module("mlxd.engines.sharded.follower_load")
        if shards.hosts[rank].here:
            BlasShare(lambda: shards.here).look()
        addresses = self._meet(place)
        with backend.lane_scope():
            mirror = loading.load(prepare, addresses, self._pipe.send)
            self._follow(mirror, backend)

    def fail(self, error: BaseException) -> None:
        """Tell rank 0 why this rank ends."""
        reason = error.reason if isinstance(error, LoadError) else LoadFailure.INTERNAL
        said = str(error) if isinstance(error, LoadError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # rank 0 is gone
            self._pipe.send(Failed(reason, sayable(said)))
            # rank 0 hears of nothing while it joins
            sys.stderr.write(f"{said}\n")
            if not isinstance(error, LoadError):
                traceback.print_exception(error)

    def _meet(self, place: Place) -> list[str]:
        """See that the others can be reached; the addresses of all, once they may be joined. Raises LoadError."""
        addresses = self._expected(Reach).addresses
        place.reach(addresses)
        place.be_reached()
        # before anybody joins: who connected here then would wait for an answer for ever
        place.leave()
        self._pipe.send(Reached())
        self._expected(Join)
        return addresses

    def _expected(self, kind: type[Kind]) -> Kind:
        """The next order, which is one of this kind; or the last one."""
        order = self._orders.get()
        if isinstance(order, Leave):
            os._exit(0)
        assert isinstance(order, kind), f"{order} came before {kind.__name__}"
        return order

    def _follow(self, mirror: Mirror, backend: Backend) -> None:
        while not isinstance(order := self._next(backend), Leave):
            mirror.follow(order)
        os._exit(0)

    def _next(self, backend: Backend) -> Any:
        """The next order; where none comes for a while, free buffers go back to the system."""
        try:
            return self._orders.get(timeout=IDLE)
        except queue.Empty:
            backend.reclaim()
            return self._orders.get()

    def _read(self) -> None:
        for order in self._pipe.receive():
            self._heard.set()
            if not isinstance(order, Ping):
                self._orders.put(order)
        os._exit(ORPHANED)

    def _expect(self) -> None:
        while self._heard.wait(ALONE):
            self._heard.clear()
        with contextlib.suppress(OSError):  # nobody reads it either
            sys.stderr.write(f"nothing was heard of rank 0 for {ALONE:.0f} s\n")
        os._exit(ORPHANED)

    def _beat(self) -> None:
        # an event that nobody sets: a wait that ends with the process
        rests = threading.Event()
        while not rests.wait(BEAT):
            try:
                self._pipe.send(Beat(self._measure()))
            except OSError:
                os._exit(ORPHANED)
