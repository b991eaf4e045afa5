"""The daemon's address as `mlxd doctor` sees it: free, served by an mlxd, or taken by something else."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from dataclasses import dataclass

from msgspec import Struct

from mlxd.daemon.cli.address import find_daemon, listening_url
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.doctor_checks import Check, Group
from mlxd.daemon.cli.doctor_config import config_problem
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.views import MemoryView
from mlxd.daemon.config import check_bind, located
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.config_hosts import is_loopback
from mlxd.daemon.keys_file import read_keys
from mlxd.daemon.settings import LoadedConfig, ServerSettings

GROUP = Group("address")
ANSWER_SECONDS = 3.0
"""A daemon answers these calls from memory."""

_OK = 200


class HealthView(Struct, frozen=True):
    """What an mlxd says at /health; anything else does not have all of it."""

    status: str
    version: str
    pid: int
    uptime_s: float


@dataclass(frozen=True, slots=True)
class Running:
    """The daemon that answers at the address; `memory` is None when it does not tell, and then `refusal` says why."""

    url: str
    health: HealthView
    memory: MemoryView | None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """What is at the address: why it cannot be listened on, None where it can, and the mlxd that serves there."""

    trouble: OSError | None
    running: Running | None = None


def look_at(server: ServerSettings) -> Place:
    """See who has the address. It is bound for a moment if nobody has; nobody can connect meanwhile."""
    try:
        _try_bind(server.host, server.port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        return Place(error, asyncio.run(_running(listening_url(server))) if taken else None)
    return Place(None)


def address_checks(loaded: LoadedConfig, place: Place) -> list[Check]:
    """All about where the daemon listens."""
    return [_bind_rule(loaded), _port(loaded.settings.server, place)]


def _try_bind(host: str, port: int) -> None:
    """Bind as the daemon would, to each address of the host, and let go. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                candidate.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            candidate.bind(address)


async def _running(url: str) -> Running | None:
    async with DaemonClient(find_daemon(url)) as client:
        try:
            status, answer = await client.answer("GET", "/health", timeout=ANSWER_SECONDS)
            health = view(answer, HealthView)
        except CommandFailed:
            return None
        if status != _OK:
            return None
        try:
            memory = view(await client.call("GET", "/admin/memory", timeout=ANSWER_SECONDS), MemoryView)
        except CommandFailed as error:
            return Running(url, health, None, error.message)
        return Running(url, health, memory)


def _bind_rule(loaded: LoadedConfig) -> Check:
    host = loaded.settings.server.host
    try:
        has_keys = bool(read_keys(loaded.settings.auth.keys_file))
    except ConfigError:  # the configuration's own checks tell of it
        has_keys = False
    try:
        check_bind(loaded.settings, has_keys)
    except ConfigError as error:
        [problem] = located(error, loaded).problems
        return config_problem(GROUP, "host", problem)
    who = "this machine only" if is_loopback(host) else "other machines"
    asked = "with an API key" if has_keys else "without API keys"
    return GROUP.ok("host", f"{host} is reached from {who}, {asked}", host=host, keys=has_keys)


def _port(server: ServerSettings, place: Place) -> Check:
    where = f"{server.host} port {server.port}"
    if place.running is not None:
        health = place.running.health
        found = f"mlxd {health.version} (process {health.pid}) serves at {where}"
        return GROUP.ok("port", found, port=server.port, pid=health.pid, version=health.version)
    if place.trouble is None:
        return GROUP.ok("port", f"{where} is free" if server.port else "any free port is taken", port=server.port)
    found, advice = _taken(place.trouble, where)
    return GROUP.problem("port", found, advice, port=server.port)


def _taken(error: OSError, where: str) -> tuple[str, str]:
    """What keeps the daemon from listening, and what to do."""
    if error.errno == errno.EADDRINUSE:
        found = f"{where} is in use by a program that does not answer as an mlxd does"
        return found, "stop that program (lsof -i tcp names it), or set server.port"
    if error.errno == errno.EACCES:
        return f"{where} may not be used without privileges", "set server.port to 1024 or more"
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
    return f"{where} cannot be listened on: {reason}", "set server.host to an address of this machine"
