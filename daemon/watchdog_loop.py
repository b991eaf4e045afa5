"""Notices, from a thread of its own, when the event loop does not come round."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from mlxd.daemon.process_end import crash
from mlxd.daemon.settings import SupervisionSettings
from mlxd.daemon.watchdog_deadman import Deadman
from mlxd.daemon.watchdog_dumps import HangDumps

log = structlog.stdlib.get_logger(__name__)

# Seconds between two looks.
INTERVAL = 1.0
_STDERR = 2
# Times `loop_timeout` after which the process ends, if it is to.
_END_AFTER = 2


class LoopWatchdog:
    """Entered on the event loop that it watches. `settings` is read at each look.

    Each second the event loop is asked for a sign of life. Without one for `loop_timeout` seconds the log and a dump
    tell of it, once, and after twice as long the process ends with SIGABRT, if `exit_on_hang` is set. Where not even
    this thread comes round, because native code keeps the interpreter's lock, a Deadman does the same.
    """

    def __init__(
        self,
        settings: Callable[[], SupervisionSettings],
        dumps: HangDumps,
        clock: Callable[[], float] = time.monotonic,
        deadman: Callable[[int], Deadman] = Deadman,
        end: Callable[[], object] = crash,
    ) -> None:
        self._settings = settings
        self._dumps = dumps
        self._clock = clock
        self._make_deadman = deadman
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._left = threading.Event()
        self._looked = clock()
        self._asked: float | None = None
        self._lag = 0.0
        self._waited = 0.0
        self._pause = 0.0
        self._told = False
        self._own: int | None = None

    @property
    def lag(self) -> float:
        """Seconds that the event loop took for its last sign of life, or has been taking for the next."""
        asked = self._asked
        return self._lag if asked is None else max(self._lag, self._clock() - asked)

    def __enter__(self) -> Self:
        """Begin to watch; what an earlier process has left behind is told."""
        try:
            self._own = self._dumps.open_own()
        except OSError as error:
            log.warning("watchdog.dump_failed", error=repr(error))
        self._deadman = self._make_deadman(_STDERR if self._own is None else self._own)
        left = self._take_own("left by an earlier process, which hung or crashed")
        if left is not None:
            log.warning("watchdog.found", dump=left)
        self._looked = self._clock()
        self._arm(self._settings())
        self._thread = threading.Thread(target=self._main, name="loop-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join(INTERVAL)
        self._deadman.close()
        if self._own is not None:
            os.close(self._own)

    def _main(self) -> None:
        while not self._left.wait(INTERVAL):
            try:
                self.look()
            except RuntimeError:
                return  # the event loop has ended
            # Whatever one look met, the next ones are needed.
            except Exception:
                log.exception("watchdog.broke")

    def look(self) -> None:
        """Look once. Raises RuntimeError when the event loop is closed."""
        now = self._clock()
        gap, self._looked = now - self._looked, now
        settings = self._settings()
        self._arm(settings)
        self._tell_pause()
        if settings.loop_timeout is not None and gap - INTERVAL >= settings.loop_timeout:
            self._pause = gap
        if self._asked is None:
            self._answered(now)
        else:
            # looks are counted: a process that was stopped for an hour has not hung for one
            self._waited += min(gap, INTERVAL)
            self._judge(settings)

    def _arm(self, settings: SupervisionSettings) -> None:
        limit = settings.loop_timeout
        self._deadman.arm(limit, None if limit is None or not settings.exit_on_hang else _END_AFTER * limit)

    def _answered(self, now: float) -> None:
        if self._told:
            log.warning("watchdog.loop_back", seconds=round(self._waited, 1))
        self._told, self._waited = False, 0.0
        self._asked = now
        self._loop.call_soon_threadsafe(self._answer, now)

    def _answer(self, asked: float) -> None:
        self._lag = self._clock() - asked
        self._asked = None

    def _judge(self, settings: SupervisionSettings) -> None:
        limit = settings.loop_timeout
        if limit is None or self._waited < limit:
            return
        if not self._told:
            self._told = True
            dump = self._try(lambda: self._dumps.write("the event loop does not come round"))
            log.error("watchdog.loop_stuck", seconds=round(self._waited, 1), dump=dump)
        if settings.exit_on_hang and self._waited >= _END_AFTER * limit:
            log.error("watchdog.exit", reason="the event loop is stuck")
            self._end()

    def _tell_pause(self) -> None:
        """No Python code ran until the look before this one, this thread's neither. faulthandler has written by now."""
        if not self._pause:
            return
        pause, self._pause = self._pause, 0.0
        dump = self._take_own("no Python code ran")
        log.error("watchdog.paused", seconds=round(pause, 1), dump=dump)

    def _take_own(self, occasion: str) -> str | None:
        own = self._own
        return None if own is None else self._try(lambda: self._dumps.take_own(own, occasion))

    def _try(self, write: Callable[[], Path | None]) -> str | None:
        try:
            path = write()
        except OSError as error:
            log.warning("watchdog.dump_failed", error=repr(error))
            return None
        return None if path is None else str(path)
