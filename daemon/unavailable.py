"""Settings that are checked already but whose feature this version does not have yet."""

from __future__ import annotations

from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.settings import EngineSettings, Settings

# Without these the daemon behaves as if they were at their default, which is safe to go on with.
_QUIET = ("prefix_cache", "prefix_cache_disk")


def without_effect(settings: Settings) -> list[str]:
    """Sentences about keys that are set and change nothing yet."""
    changed = {key for engine in _engines(settings) for key in _QUIET if getattr(engine, key) != _default(key)}
    return [f"engine.{key} has no effect in this version" for key in sorted(changed)]


def refuse_unavailable(settings: Settings) -> None:
    """Raise ConfigError for what a user relies on for safety and does not get."""
    problems = []
    if any(engine.isolation == "process" for engine in _engines(settings)):
        problems.append(Problem('"process" is not available in this version; use "thread"', "engine.isolation"))
    if settings.auth.keys_file.exists():
        message = f"{settings.auth.keys_file} exists, but this version cannot check API keys; move it away"
        problems.append(Problem(message, "auth.keys_file"))
    if problems:
        raise ConfigError(*problems)


def _engines(settings: Settings) -> list[EngineSettings]:
    return [settings.engine, *(settings.engine_for(entry.name) for entry in settings.model)]


def _default(key: str) -> object:
    return getattr(EngineSettings(), key)
