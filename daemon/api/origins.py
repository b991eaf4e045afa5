"""Who may talk to the daemon: which Host names are ours, and which other sites may make changes. Pure functions."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from mlxd.daemon.config_hosts import is_loopback
from mlxd.daemon.settings import ServerSettings

ANY_ORIGIN = "*"

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/?#@\s]+)(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def host_is_allowed(host: str, server: ServerSettings) -> bool:
    """Whether a Host header names this daemon: a loopback name, the configured host or one of `allowed_hosts`.

    A daemon that listens on every address is also reached by any plain address: only names can be rebound.
    """
    match = _HOST.fullmatch(host.strip())
    if match is None:
        return False
    name = _plain(match["name"])
    if is_loopback(name) or name == _plain(server.host):
        return True
    if _is_unspecified(server.host) and _address(name) is not None:
        return True
    allowed = {entry.lower() for entry in server.allowed_hosts}
    named = {_plain(_HOST.sub(r"\g<name>", entry)) for entry in allowed if _has_no_port(entry)}
    return host.strip().lower() in allowed or name in named


def origin_is_allowed(origin: str, host: str | None, server: ServerSettings) -> bool:
    """Whether a page of `origin` may make changes: it was served from this very host, or is configured."""
    return origin_is_configured(origin, server) or (host is not None and _is_same_origin(origin, host))


def origin_is_configured(origin: str, server: ServerSettings) -> bool:
    """Whether `server.cors_origins` has this origin."""
    known = {entry.lower() for entry in server.cors_origins}
    return ANY_ORIGIN in known or origin.lower() in known


def _is_same_origin(origin: str, host: str) -> bool:
    page = _split(origin)
    here = _split(f"{page.scheme}://{host}") if page is not None else None
    if page is None or here is None or page.scheme not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[page.scheme]
    return page.hostname == here.hostname and (page.port or default) == (here.port or default)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # a port out of range raises only when it is read
    except ValueError:
        return None
    return parts if parts.hostname else None


def _has_no_port(entry: str) -> bool:
    match = _HOST.fullmatch(entry)
    return match is None or match["port"] is None


def _plain(name: str) -> str:
    return name.lower().removeprefix("[").removesuffix("]").rstrip(".")


def _is_unspecified(host: str) -> bool:
    address = _address(_plain(host))
    return address is not None and address.is_unspecified


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
