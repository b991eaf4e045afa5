"""Sockets that the service manager listens on and hands over at the start: systemd's $LISTEN_FDS."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.config_hosts import is_loopback

_FIRST = 3
_ADVICE = "the .socket unit needs ListenStream= and Accept=no"


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """They take the place of those that the configuration names; processes that this one starts do not have them."""

    tcp: tuple[socket.socket, ...] = ()
    unix: tuple[socket.socket, ...] = ()

    def flags(self) -> dict[str, object]:
        """What they say of the daemon's address, as flags that set it would."""
        hosts = [str(each.getsockname()[0]) for each in self.tcp]
        if not hosts:
            return {}
        # whoever is reached from elsewhere needs keys, whatever else is listened on
        host = next((host for host in hosts if not is_loopback(host)), hosts[0])
        return {"host": host, "port": self.tcp[hosts.index(host)].getsockname()[1]}


NO_SOCKETS = InheritedSockets()
"""None are handed over."""


def inherited_sockets(environ: Mapping[str, str], pid: int) -> InheritedSockets:
    """Those that the environment of the process `pid` announces. Raises ConfigError for what nobody could serve."""
    count = environ.get("LISTEN_FDS", "")
    if not count.isdecimal() or environ.get("LISTEN_PID") != str(pid):
        return NO_SOCKETS
    found = [_adopted(descriptor) for descriptor in range(_FIRST, _FIRST + int(count))]
    unix = tuple(each for each in found if each.family == socket.AF_UNIX)
    return InheritedSockets(tuple(each for each in found if each.family != socket.AF_UNIX), unix)


def _adopted(descriptor: int) -> socket.socket:
    try:
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        raise _refused(descriptor, f"is no socket: {error.strerror}") from error
    listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if found.type != socket.SOCK_STREAM or not listens or not _is_known(found):
        found.detach()
        raise _refused(descriptor, "does not listen for connections over TCP or a Unix socket")
    found.set_inheritable(False)
    return found


def _is_known(found: socket.socket) -> bool:
    return found.family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)


def _refused(descriptor: int, why: str) -> ConfigError:
    return ConfigError(Problem(f"file descriptor {descriptor} {why}; {_ADVICE}", source="environment LISTEN_FDS"))
