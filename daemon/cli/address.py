"""Finds the daemon that a command talks to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import click

from mlxd.daemon.cli.failures import BadConfig
from mlxd.daemon.config import ConfigError, load_config
from mlxd.daemon.config_hosts import address_complaint
from mlxd.daemon.settings import ServerSettings

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - these are replaced, not listened on


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """The daemon's base URL, without a slash at its end, and the API key to send."""

    url: str
    key: str | None


def find_daemon(url: str | None) -> DaemonAddress:
    """The daemon at `url`, else where the configuration says. Raises UsageError and BadConfig."""
    return DaemonAddress(_base_url(url) if url else _configured_url(), _key())


def _base_url(url: str) -> str:
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    parts = _split(text)
    if parts is None or parts.scheme not in ("http", "https") or not _is_host(parts.hostname):
        raise click.UsageError(f"expected an address such as http://127.0.0.1:8484 in --url or $MLXD_URL, got {url!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise click.UsageError("the address takes no user, query or fragment; put the API key into $MLXD_API_KEY")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        # reading the port checks it
        port = parts.port
    except ValueError:
        return None
    return parts if port != 0 else None


def _is_host(host: str | None) -> bool:
    return bool(host) and host is not None and address_complaint(host) is None


def _configured_url() -> str:
    try:
        server = load_config({}, os.environ, None).settings.server
    except ConfigError as error:
        raise BadConfig(f"{error}\npass --url to reach a daemon without the configuration") from error
    return listening_url(server)


def listening_url(server: ServerSettings) -> str:
    """Where a daemon with these settings is reached. Raises UsageError for any free port, which nobody can know."""
    if not server.port:
        raise click.UsageError("server.port is 0, so the daemon has any free port: pass the one it printed with --url")
    host = _EVERYWHERE.get(server.host, server.host)
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"


def _key() -> str | None:
    key = os.environ.get("MLXD_API_KEY", "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()):
        raise click.UsageError("$MLXD_API_KEY holds characters that no API key has")
    return key
