"""How long a stop may take, for whoever waits for it."""

from __future__ import annotations

from mlxd.daemon.settings import Settings

FLUSH_TIMEOUT = 5.0
"""Seconds that handlers get to write their last bytes once the engines are gone."""

_OWN_MARGIN = 10.0
_MARGIN = 25.0


def stop_seconds(settings: Settings) -> float:
    """Seconds that a stop takes at most: requests end, engines are freed, what is left is written and closed."""
    return settings.server.drain_timeout + settings.residency.unload_timeout + FLUSH_TIMEOUT + _MARGIN


def exit_seconds(settings: Settings) -> float:
    """Seconds after which a daemon that was told to stop ends itself, whatever it still waits for."""
    return settings.server.drain_timeout + settings.residency.unload_timeout + FLUSH_TIMEOUT + _OWN_MARGIN
