"""Runs the daemon in the foreground: start, serve until a signal, stop in order."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from aiohttp import web

from mlxd.daemon.app import Daemon
from mlxd.daemon.blas import BlasPlan
from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.config import ConfigError, check_bind
from mlxd.daemon.log import configure_logging
from mlxd.daemon.probe_choice import hf_cache_dir, make_probe
from mlxd.daemon.settings import LoadedConfig, Settings
from mlxd.daemon.state_dir import StateDir, StateDirBusy
from mlxd.daemon.unavailable import refuse_unavailable, without_effect

log = structlog.stdlib.get_logger(__name__)

# Seconds that handlers get to write their last bytes once the engines are gone.
FLUSH_TIMEOUT = 5.0


def run(loaded: LoadedConfig, blas: BlasPlan) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code. What came of the search for a BLAS is logged once."""
    settings = loaded.settings
    try:
        configure_logging(settings.log.level, settings.log.format, settings.log.file)
        (log.warning if blas.slow else log.info)("blas.plan", note=blas.note)
        for note in without_effect(settings):
            log.warning("config.note", note=note)
        refuse_unavailable(settings)
        check_bind(settings, has_keys=False)
        with StateDir(settings.server.state_dir):
            return _leave(asyncio.run(_serve(settings)))
    except ConfigError as error:
        return _fail(Exit.BAD_CONFIG, error)
    except StateDirBusy as error:
        return _fail(Exit.STATE_DIR_BUSY, error)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _fail(Exit.ADDRESS_IN_USE, _address_in_use(settings))
        return _fail(Exit.FAILED, error)


def _leave(code: int) -> int:
    """End the process at once when MLX is loaded: everything is closed, and its destructors may abort it.

    A thread that is stuck in native code could not be joined either.
    """
    if "mlx.core" not in sys.modules:
        return code
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _serve(settings: Settings) -> int:
    daemon = Daemon(settings, make_probe(os.environ), hf_cache=hf_cache_dir(os.environ))
    stop = asyncio.Event()
    _handle_signals(stop)
    async with _listening(daemon) as address:
        daemon.start()
        print(f"mlxd ready on {address}", flush=True)  # noqa: T201 - the ready line is the interface
        log.info("daemon.ready", address=address, models=len(daemon.catalog.specs), pid=os.getpid())
        await stop.wait()
        log.info("daemon.stopping", drain_timeout_s=settings.server.drain_timeout)
        clean = await daemon.close()
    log.info("daemon.stopped", clean=clean)
    return Exit.OK


@asynccontextmanager
async def _listening(daemon: Daemon) -> AsyncIterator[str]:
    """Serve HTTP, giving the address; at the end handlers get a moment to flush."""
    server = daemon.settings.server
    # Without handler_cancellation a handler that only waits is not told that its client left.
    runner = web.AppRunner(
        daemon.application(), handler_cancellation=True, access_log=None, shutdown_timeout=FLUSH_TIMEOUT
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, server.host, server.port)
        await site.start()
        if server.unix_socket is not None:
            await web.UnixSite(runner, str(server.unix_socket)).start()
        yield _address(runner, server.host)
    finally:
        await runner.cleanup()


def _address(runner: web.AppRunner, host: str) -> str:
    port = next(address[1] for address in runner.addresses if isinstance(address, tuple))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _handle_signals(stop: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT stops in order, the second exits now."""
    loop = asyncio.get_running_loop()

    def on_stop(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("daemon.exit_now", signal=number.name)
            sys.stderr.flush()
            os._exit(Exit.FAILED)
        log.info("daemon.signal", signal=number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop, number)
    loop.add_signal_handler(
        signal.SIGHUP, lambda: log.warning("daemon.reload_unavailable", help="restart to apply a changed config")
    )


def _address_in_use(settings: Settings) -> str:
    server = settings.server
    return f"{server.host} port {server.port} is in use by another program; stop it or set server.port (--port)"


def _fail(code: int, error: Exception | str) -> int:
    print(f"mlxd: {error}", file=sys.stderr)  # noqa: T201 - before or beside the log, for a person
    return code
