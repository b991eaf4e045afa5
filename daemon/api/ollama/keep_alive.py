"""`keep_alive`: how long a model is kept in memory after its last use, and who may say so."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from aiohttp import web

from mlxd.daemon.api.caller import caller_of, may_use
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.refusals import Forbidden, InvalidField
from mlxd.daemon.api.services import services_of
from mlxd.daemon.keys import Scope
from mlxd.daemon.units import MAX_DURATION
from mlxd.registry.names import Resolved
from mlxd.registry.residency import KeepAlive

FIELD = "keep_alive"
NOW = KeepAlive(0.0)
FOREVER = KeepAlive(None)

_FORMS = 'seconds, or a duration such as "30s", "5m" or "1h30m"; 0 for no time, -1 for ever'
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}"
_UNITS = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "h": "3600"}
_PART = rf"({_NUMBER})({'|'.join(_UNITS)})"
_DURATION = re.compile(rf"([+-]?)((?:(?:{_NUMBER})(?:{'|'.join(_UNITS)}))+)")
_BARE = re.compile(rf"([+-]?)({_NUMBER})")
_MAX_LENGTH = 100


def parse_keep_alive(value: float | int | str | None) -> KeepAlive | None:
    """How long, as Ollama reads it; None where nothing is said. Raises InvalidField."""
    if value is None:
        return None
    seconds = _seconds(value) if isinstance(value, str) else value
    if seconds is None:
        raise InvalidField(f"{FIELD}: expected {_FORMS}", FIELD)
    # an integer may be too large for a float
    return KeepAlive(float(seconds)) if 0 <= seconds <= MAX_DURATION else FOREVER


def on_lease(request: web.Request, resolved: Resolved, keep_alive: KeepAlive | None) -> Callable[[], None]:
    """What is to be done once the request holds its model.

    A caller who may not change the model has no say, and a pinned model stays anyway: both are told so in the
    answer's head.
    """
    if keep_alive is None:
        return lambda: None
    registry = services_of(request).registry
    if not may_change(request, resolved) or registry.model(resolved.model).pinned:
        note_ignored(request, [FIELD])
        return lambda: None
    return lambda: registry.keep_alive(resolved.model, keep_alive.seconds)


def check_unload(request: web.Request, resolved: Resolved) -> None:
    """Raise Forbidden for a caller who may not change the model."""
    if not may_change(request, resolved):
        raise Forbidden("unloading a model needs a key with the scope admin; leave keep_alive out to load it", FIELD)


def may_change(request: web.Request, resolved: Resolved) -> bool:
    """Whether the caller may change how long a model stays: it takes the scope `admin`, and the whole model."""
    caller = caller_of(request)
    return caller is None or (caller.has(Scope.ADMIN) and may_use(request, Resolved(resolved.model)))


def _seconds(text: str) -> float | None:
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        return None
    if bare := _BARE.fullmatch(text):
        return _signed(bare[1], Decimal(bare[2]))
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    parts = re.findall(_PART, match[2])
    return _signed(match[1], sum((Decimal(number) * Decimal(_UNITS[unit]) for number, unit in parts), Decimal()))


def _signed(sign: str, seconds: Decimal) -> float:
    return float(-seconds if sign == "-" else seconds)
