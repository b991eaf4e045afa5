"""Looks after engines from outside: one that does not finish its step is given up, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from mlxd.daemon.disk_thread import DiskStuck, DiskThread
from mlxd.daemon.settings import SupervisionSettings
from mlxd.daemon.watchdog_dumps import HangDumps
from mlxd.engines.engine import Engine
from mlxd.engines.errors import EngineCrashed

log = structlog.stdlib.get_logger(__name__)

# Seconds between two looks.
INTERVAL = 1.0
# A look that comes so late says that the process stood still, as when it is stopped by a signal: no step's fault.
_LATE = 2 * INTERVAL
_MOST_PAUSES = 100
# Seconds that a dump may take; requests wait for their end meanwhile.
DUMP_PATIENCE = 5.0


class EngineWatchdog:
    """Runs on the event loop, and waits for no engine. `engines` gives those that are loaded, by model, `settings` what
    holds now.

    With `exit_on_hang`, `on_hung` is told the model of a hung engine that is no process of its own: its thread stays.
    """

    def __init__(
        self,
        engines: Callable[[], Mapping[str, Engine]],
        settings: Callable[[], SupervisionSettings],
        dumps: HangDumps,
        on_hung: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        dump_patience: float = DUMP_PATIENCE,
    ) -> None:
        self._engines = engines
        self._settings = settings
        self._dumps = dumps
        self._on_hung = on_hung
        self._clock = clock
        self._disk = DiskThread(dump_patience)
        self._looked = clock()
        # when each ended, and how long it was
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_MOST_PAUSES)
        self._given_up: dict[str, Engine] = {}

    async def run(self) -> None:
        """Look once a second until the daemon stops."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.look()
            # Whatever one engine is like, the next look is needed.
            except Exception:
                log.exception("watchdog.broke")

    async def look(self) -> None:
        """Give up every engine that hangs, after a dump of all threads."""
        now = self._clock()
        if now - self._looked > _LATE:
            self._pauses.append((now, now - self._looked - INTERVAL))
        self._looked = now
        present = self._engines()
        self._given_up = {name: engine for name, engine in self._given_up.items() if present.get(name) is engine}
        hung = self._hung()
        if not hung:
            return
        own = any(engine.pid is None for engine in hung.values())
        dump = await self._dump(", ".join(hung)) if own else None
        self._looked = self._clock()
        # the dump took its time: those count that hang now
        for name, engine in self._hung().items():
            self._give_up(name, engine, dump)

    def _hung(self) -> dict[str, Engine]:
        bound = self._settings().hang_timeout
        if bound is None:
            return {}
        engines = {name: engine for name, engine in self._engines().items() if name not in self._given_up}
        return {name: engine for name, engine in engines.items() if self._step_age(engine) >= bound}

    def _step_age(self, engine: Engine) -> float:
        """Seconds of the running step in which the process went on."""
        age = engine.stats().heartbeat_age_s
        begun = self._clock() - age
        return age - sum(seconds for end, seconds in self._pauses if end > begun)

    def _give_up(self, name: str, engine: Engine, dump: str | None) -> None:
        age = round(engine.stats().heartbeat_age_s, 3)
        stays = engine.pid is None
        self._given_up[name] = engine
        log.error("engine.hung", model=name, step_age_s=age, dump=dump)
        message = f"the engine of {name} has not finished a step for {age:.0f} s, and was given up"
        engine.lose(EngineCrashed(message, facts={"reason": "hung", "step_age_s": age}))
        if stays and self._settings().exit_on_hang:
            self._on_hung(name)

    async def _dump(self, models: str) -> str | None:
        try:
            return str(await self._disk.run(partial(self._dumps.write, f"no step is finished by {models}")))
        except (DiskStuck, OSError) as error:
            log.warning("watchdog.dump_failed", error=repr(error))
            return None
