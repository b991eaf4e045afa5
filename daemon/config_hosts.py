"""Checks for host names, origins and repositories; each answers with a complaint, or None."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_DIGITS = re.compile(r"[0-9.]+")
_PORT = re.compile(r":[0-9]{1,5}$")
_BRACKETED = re.compile(r"\[([^\]]+)\](:[0-9]{1,5})?")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/\s?#@]+)")
_REPO = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*")


def address_complaint(text: str) -> str | None:
    """For a host to listen on: a name or a plain IP address."""
    if _is_address(text) or _is_name(text):
        return None
    return 'expected a host name or an IP address without port, such as "127.0.0.1", "::1" or "0.0.0.0"'


def host_complaint(text: str) -> str | None:
    """For the value of a Host header: a name or an address, with a port or without."""
    if bracketed := _BRACKETED.fullmatch(text):
        return None if _is_address(bracketed[1]) else "expected an IPv6 address inside the brackets"
    name = _PORT.sub("", text)
    if _is_address(name) or _is_address(text) or _is_name(name):
        return None
    return 'expected a host name as browsers send it, such as "box.local" or "box.local:8484"'


def origin_complaint(text: str) -> str | None:
    """For a CORS origin: scheme and host, no path; or "*" for all of them."""
    origin = _ORIGIN.fullmatch(text)
    if text == "*" or (origin and host_complaint(origin[1]) is None):
        return None
    return 'expected an origin without a path, such as "https://app.example" or "http://localhost:3000", or "*"'


def remote_host_complaint(text: str) -> str | None:
    """For a host from which files are fetched: a name or an address without a port; or "*" for all of them."""
    if text == "*" or _is_address(text) or _is_name(text):
        return None
    return 'expected a host name or an IP address without port, such as "images.example", or "*"'


def server_complaint(text: str) -> str | None:
    """For the URL of another server."""
    problem = 'expected the URL of a server without a query, such as "http://studio.local:8484"'
    if not text.isascii() or not text.isprintable() or " " in text:
        return problem
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return problem
    if parts.username is not None or parts.password is not None:
        return "expected a URL without user and password; its key goes into the key of the entry"
    sound = parts.scheme in ("http", "https") and parts.hostname and port != 0 and not parts.query + parts.fragment
    return None if sound else problem


def repo_complaint(text: str) -> str | None:
    """For a Hugging Face repository."""
    return None if _REPO.fullmatch(text) else 'expected a repository as "owner/name"'


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; a name other than localhost counts as reachable."""
    if not _is_address(host):
        name = host.lower().rstrip(".")
        return name == "localhost" or name.endswith(".localhost")
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and _DIGITS.fullmatch(text) is None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
