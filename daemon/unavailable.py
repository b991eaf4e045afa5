"""Settings that are sound each by itself and that this version cannot follow."""

from __future__ import annotations

from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.settings import EngineSettings, Settings


def refuse_unavailable(settings: Settings) -> None:
    """Raise ConfigError for what a user relies on and would not get."""
    problems = []
    if any(engine.prefix_cache == "off" != engine.prefix_cache_disk for engine in _engines(settings)):
        message = 'needs prefix_cache, which is "off": nothing is kept that could be written; turn both on or both off'
        problems.append(Problem(message, "engine.prefix_cache_disk"))
    if problems:
        raise ConfigError(*problems)


def _engines(settings: Settings) -> list[EngineSettings]:
    return [settings.engine, *(settings.engine_for(entry.name) for entry in settings.model)]
