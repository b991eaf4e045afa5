"""Runs the daemon in the foreground: start, serve until a signal, stop in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable

import structlog

from mlxd.daemon.app import Daemon
from mlxd.daemon.blas import BlasPlan
from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.config import ConfigError, located
from mlxd.daemon.config_source import ConfigSource, check_settings
from mlxd.daemon.last_words import flush_streams, say
from mlxd.daemon.listening import AddressInUse, listening
from mlxd.daemon.log import configure_logging
from mlxd.daemon.probe_choice import hf_cache_dir, make_probe
from mlxd.daemon.settings import LoadedConfig, Settings
from mlxd.daemon.state_dir import StateDir, StateDirBusy

log = structlog.stdlib.get_logger(__name__)

# Seconds that handlers get to write their last bytes once the engines are gone.
FLUSH_TIMEOUT = 5.0


def run(source: ConfigSource, loaded: LoadedConfig, blas: BlasPlan) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code. `loaded` is from `source`, which a reload reads again.

    What came of the search for a BLAS is logged once.
    """
    settings = loaded.settings
    try:
        configure_logging(settings.log.level, settings.log.format, settings.log.file)
        (log.warning if blas.slow else log.info)("blas.plan", note=blas.note)
        check_settings(settings)
        with StateDir(settings.server.state_dir):
            return _leave(asyncio.run(_serve(settings, source)))
    except ConfigError as error:
        return _fail(Exit.BAD_CONFIG, located(error, loaded))
    except StateDirBusy as error:
        return _fail(Exit.STATE_DIR_BUSY, error)
    except AddressInUse as error:
        return _fail(Exit.ADDRESS_IN_USE, error)
    except OSError as error:
        return _fail(Exit.FAILED, error)


def _leave(code: int) -> int:
    """End the process at once when MLX is loaded: everything is closed, and its destructors may abort it.

    A thread that is stuck in native code could not be joined either.
    """
    logging.shutdown()
    flush_streams()
    if "mlx.core" not in sys.modules:
        return code
    os._exit(code)


async def _serve(settings: Settings, source: ConfigSource) -> int:
    daemon = Daemon(
        settings,
        make_probe(os.environ),
        hf_cache=hf_cache_dir(os.environ),
        read=source.load_checked,
        on_imported=_spare_collector,
    )
    stop = asyncio.Event()
    _handle_signals(stop, daemon.reloader.request)
    async with listening(daemon.application(), settings.server, FLUSH_TIMEOUT) as address:
        daemon.start()
        say(f"mlxd ready on {address}", sys.stdout)
        log.info(
            "daemon.ready",
            address=address,
            models=len(daemon.live.catalog.specs),
            pid=os.getpid(),
            asks_for_keys=not daemon.services.keys.is_open,
        )
        await stop.wait()
        log.info("daemon.stopping", drain_timeout_s=settings.server.drain_timeout)
        clean = await daemon.close()
    log.info("daemon.stopped", clean=clean)
    return Exit.OK


def _spare_collector() -> None:
    """Keep the garbage collector from looking through what was imported, which stays: every look stalls all requests.

    With MLX's libraries these are 100,000 objects, a tenth of a second on slow machines.
    """
    gc.collect()
    gc.freeze()


def _handle_signals(stop: asyncio.Event, reload: Callable[[], None]) -> None:
    """The first SIGTERM or SIGINT stops in order, the second exits now. SIGHUP reloads."""
    loop = asyncio.get_running_loop()

    def on_stop(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("daemon.exit_now", signal=number.name)
            flush_streams()
            os._exit(Exit.FAILED)
        log.info("daemon.signal", signal=number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop, number)
    loop.add_signal_handler(signal.SIGHUP, reload)


def _fail(code: int, error: Exception) -> int:
    say(f"mlxd: {error}", sys.stderr)
    return _leave(code)
