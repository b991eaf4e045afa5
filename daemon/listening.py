"""Where the daemon listens: the TCP address, and a Unix socket beside it; or where the service manager does already."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web

from mlxd.daemon.api.server import backlog, make_runner
from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.inherited_sockets import NO_SOCKETS, InheritedSockets
from mlxd.daemon.settings import ServerSettings


class AddressInUse(Exception):
    """Another program listens there."""


@asynccontextmanager
async def listening(
    application: web.Application,
    server: ServerSettings,
    flush_timeout: float,
    inherited: InheritedSockets = NO_SOCKETS,
) -> AsyncIterator[str]:
    """Serve HTTP, giving the address; at the end handlers get `flush_timeout` seconds to write their last bytes.

    Sockets that are `inherited` are served instead of the configured one of their kind. Raises AddressInUse,
    ConfigError for a Unix socket that cannot be, and OSError for an address that cannot.
    """
    # aiohttp waits for handlers, cancels them, and waits as long once more
    runner = make_runner(application, flush_timeout / 2)
    await runner.setup()
    async with AsyncExitStack() as held:
        held.push_async_callback(runner.cleanup)
        for each in (*inherited.tcp, *inherited.unix):
            await web.SockSite(runner, each, backlog=backlog()).start()
        if not inherited.tcp:
            with _tcp_trouble(server):
                await web.TCPSite(runner, server.host, server.port, backlog=backlog()).start()
        address = _address(runner, server.host)
        if server.unix_socket is not None and not inherited.unix:
            await held.enter_async_context(_unix_site(runner, server.unix_socket))
        yield address


@asynccontextmanager
async def _unix_site(runner: web.AppRunner, path: Path) -> AsyncIterator[None]:
    """Listen on a Unix socket; its file goes at the end, unless another daemon's has taken its place."""
    _check_free(path)
    try:
        await web.UnixSite(runner, str(path), backlog=backlog()).start()
        made = _inode(path)
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from error
    try:
        yield
    finally:
        _remove(path, made)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _remove(path: Path, inode: int | None) -> None:
    if inode is not None and _inode(path) == inode:
        path.unlink(missing_ok=True)


def _check_free(path: Path) -> None:
    """A socket that nobody serves is left from a crash and may be replaced; anything else may not."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from error
    if not is_socket:
        raise _cannot(path, "it exists and is no socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        answer = client.connect_ex(str(path))
    if answer in (0, errno.EAGAIN, errno.EINPROGRESS):
        raise AddressInUse(f"{path} is served by another program; stop it or set server.unix_socket")


def _cannot(path: Path, why: str) -> ConfigError:
    return ConfigError(Problem(f"cannot listen on {path}: {why}", "server.unix_socket"))


@contextmanager
def _tcp_trouble(server: ServerSettings) -> Iterator[None]:
    place = f"{server.host} port {server.port}"
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"{place} is in use by another program; stop it or set server.port (--port)"
            raise AddressInUse(message) from error
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise OSError(f"cannot listen on {place} (server.host, server.port): {reason}") from error


def _address(runner: web.AppRunner, host: str) -> str:
    port = next(address[1] for address in runner.addresses if isinstance(address, tuple))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
