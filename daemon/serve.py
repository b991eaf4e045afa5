"""Runs the daemon in the foreground: start, serve until a signal, stop in order."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial
from typing import NoReturn

import structlog

from mlxd.daemon.app import Daemon
from mlxd.daemon.blas import BlasPlan
from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.config import ConfigError, located
from mlxd.daemon.config_source import ConfigSource, check_settings
from mlxd.daemon.inherited_sockets import InheritedSockets
from mlxd.daemon.last_words import flush_streams, say
from mlxd.daemon.listening import AddressInUse, listening
from mlxd.daemon.log import configure_logging
from mlxd.daemon.log_tail import LogTail
from mlxd.daemon.notify import Notifier
from mlxd.daemon.probe_choice import hf_cache_dir, make_probe
from mlxd.daemon.process_end import crash, leave
from mlxd.daemon.settings import LoadedConfig
from mlxd.daemon.sleep_darwin import system_power
from mlxd.daemon.state_dir import StateDir, StateDirBusy
from mlxd.daemon.stop_signals import StopSignals
from mlxd.daemon.stop_time import FLUSH_TIMEOUT, exit_seconds, stop_seconds
from mlxd.daemon.watchdog_loop import LoopWatchdog

log = structlog.stdlib.get_logger(__name__)


def run(source: ConfigSource, loaded: LoadedConfig, blas: BlasPlan, inherited: InheritedSockets) -> int:
    """Serve until SIGTERM or SIGINT, which ends the process; the exit code when it does not come to that.

    `loaded` is from `source`, which a reload reads again; `inherited` is served as `listening` says. What came of the
    search for a BLAS is logged once.
    """
    settings = loaded.settings
    try:
        to, tail = settings.log, LogTail()
        configure_logging(to.level, to.format, to.file, only_file=not to.stderr, tail=tail)
        (log.warning if blas.slow else log.info)("blas.plan", note=blas.note)
        check_settings(settings)
        with StateDir(settings.server.state_dir):
            asyncio.run(_serve(loaded, source, inherited, tail))
    except ConfigError as error:
        return _fail(Exit.BAD_CONFIG, located(error, loaded))
    except StateDirBusy as error:
        return _fail(Exit.STATE_DIR_BUSY, error)
    except AddressInUse as error:
        return _fail(Exit.ADDRESS_IN_USE, error)
    except OSError as error:
        return _fail(Exit.FAILED, error)


async def _serve(loaded: LoadedConfig, source: ConfigSource, inherited: InheritedSockets, tail: LogTail) -> NoReturn:
    settings, hung = loaded.settings, list[str]()

    def on_hung(model: str) -> None:
        log.error("watchdog.exit", reason=f"the engine of {model} hangs")
        hung.append(model)
        signals.begin()

    daemon = Daemon(
        settings,
        make_probe(os.environ),
        hf_cache=hf_cache_dir(os.environ),
        read=source.load_checked,
        on_hung=on_hung,
        loop_lag=lambda: loop_watchdog.lag,
        power=system_power(),
        log_tail=tail,
    )
    live = daemon.live
    live.origins = loaded.origins
    notifier = Notifier.from_environ(os.environ, os.getpid())
    daemon.reloader.announced = notifier.reloading
    loop_watchdog = LoopWatchdog(lambda: live.settings.supervision, daemon.dumps)
    signals = StopSignals(daemon.reloader.request, lambda: exit_seconds(live.settings), partial(_tell_overdue, daemon))
    with loop_watchdog, signals:
        async with (
            notifier.watched(),
            listening(daemon.application(), settings.server, FLUSH_TIMEOUT, inherited) as address,
        ):
            daemon.start()
            notifier.ready(f"serving on {address}")
            say(f"mlxd ready on {address}", sys.stdout)
            log.info(
                "daemon.ready",
                address=address,
                models=len(live.catalog.specs),
                pid=os.getpid(),
                asks_for_keys=not daemon.services.keys.is_open,
            )
            await signals.stop.wait()
            notifier.stopping(stop_seconds(live.settings))
            log.info("daemon.stopping", drain_timeout_s=live.settings.server.drain_timeout)
            clean = await daemon.close()
        log.info("daemon.stopped", clean=clean)
        if hung:
            crash()
        leave(Exit.OK)


def _tell_overdue(daemon: Daemon, seconds: float) -> None:
    log.error("daemon.exit_overdue", seconds=seconds)
    daemon.dumps.write("the daemon does not come to its end")


def _fail(code: int, error: Exception) -> int:
    say(f"mlxd: {error}", sys.stderr)
    logging.shutdown()
    flush_streams()
    return code
