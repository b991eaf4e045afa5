"""When a changed key takes effect, for every key that the configuration has."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import structs

from mlxd.daemon.config_errors import KeyPath
from mlxd.daemon.config_schema import PEER_RULES, SECTIONS
from mlxd.daemon.settings import Settings


class Applies(enum.StrEnum):
    """At once; once the models that it concerns are loaded again; or after a restart of the daemon."""

    NOW = "now"
    RELOAD = "reload"
    RESTART = "restart"


KEYS: Mapping[str, Applies] = {
    "server.host": Applies.RESTART,
    "server.port": Applies.RESTART,
    "server.unix_socket": Applies.RESTART,
    "server.allowed_hosts": Applies.NOW,
    "server.cors_origins": Applies.NOW,
    "server.max_body": Applies.NOW,
    "server.keepalive_interval": Applies.NOW,
    "server.drain_timeout": Applies.NOW,
    "server.state_dir": Applies.RESTART,
    "auth.keys_file": Applies.RESTART,
    "models.dirs": Applies.NOW,
    "models.hf_cache": Applies.NOW,
    "models.default": Applies.NOW,
    "models.autoload": Applies.NOW,
    "models.preload": Applies.NOW,
    "models.restore": Applies.NOW,
    "models.ttl": Applies.NOW,
    "models.watch_interval": Applies.NOW,
    "residency.max_loaded": Applies.NOW,
    "residency.max_loading": Applies.NOW,
    "residency.queue_size": Applies.NOW,
    "residency.queue_timeout": Applies.NOW,
    "residency.max_wait": Applies.NOW,
    "residency.min_residency": Applies.NOW,
    "residency.load_stall_timeout": Applies.NOW,
    "residency.unload_timeout": Applies.NOW,
    "residency.retry_backoff": Applies.NOW,
    "memory.ceiling": Applies.NOW,
    "memory.soft": Applies.NOW,
    "memory.poll_interval": Applies.NOW,
    "engine.isolation": Applies.RELOAD,
    "engine.step_lock": Applies.RESTART,
    "engine.blas": Applies.RESTART,
    "engine.max_running": Applies.NOW,
    "engine.max_waiting": Applies.NOW,
    "engine.context_length": Applies.RELOAD,
    "engine.max_tokens": Applies.NOW,
    "engine.prefill_chunk": Applies.NOW,
    "engine.max_stall": Applies.NOW,
    "engine.prefix_cache": Applies.RELOAD,
    "engine.prefix_cache_disk": Applies.RELOAD,
    "engine.draft": Applies.RELOAD,
    "engine.draft_tokens": Applies.RELOAD,
    "images.max_count": Applies.NOW,
    "images.max_bytes": Applies.NOW,
    "images.max_pixels": Applies.NOW,
    "images.remote_hosts": Applies.NOW,
    "supervision.answer_timeout": Applies.NOW,
    "supervision.hang_timeout": Applies.NOW,
    "supervision.loop_timeout": Applies.NOW,
    "supervision.exit_on_hang": Applies.NOW,
    "log.level": Applies.NOW,
    "log.format": Applies.RESTART,
    "log.file": Applies.RESTART,
    "log.stderr": Applies.RESTART,
    "log.prompts": Applies.NOW,
}
"""Every key of a table, and those that only the engine table of a model has."""

MODEL_KEYS: Mapping[str, Applies] = {
    "name": Applies.NOW,
    "path": Applies.RELOAD,
    "repo": Applies.RELOAD,
    "aliases": Applies.NOW,
    "pinned": Applies.NOW,
    "ttl": Applies.NOW,
    "hosts": Applies.RELOAD,
    "hostfile": Applies.RELOAD,
    "sharding": Applies.RELOAD,
    "backend": Applies.RELOAD,
    "remote_shell": Applies.RELOAD,
    "remote_python": Applies.RELOAD,
    "adapters": Applies.RELOAD,
    "sampling": Applies.NOW,
    "presets": Applies.NOW,
}
"""The keys of a `[[model]]` entry but for `engine`, whose keys are as in [engine]."""


PEER_KEYS: Mapping[str, Applies] = dict.fromkeys(PEER_RULES, Applies.NOW)
"""The keys of a `[[peer]]` entry."""


def applies(path: KeyPath) -> Applies:
    """When a change of this key takes effect; models and peers go by name. Raises KeyError for what is no key."""
    table, *rest = map(str, path)
    if table == "peer":
        return PEER_KEYS[rest[1]]
    if table != "model":
        return KEYS[f"{table}.{rest[0]}"]
    return KEYS[f"engine.{rest[2]}"] if rest[1] == "engine" else MODEL_KEYS[rest[1]]


def in_effect(running: Settings, wanted: Settings) -> Settings:
    """What holds once `wanted` is applied: its values, but for those of `running` that only a restart changes."""
    return structs.replace(wanted, **{name: _kept(name, running, wanted) for name in SECTIONS})


def _kept(section: str, running: Settings, wanted: Settings) -> object:
    fixed = [key for key in SECTIONS[section].rules if KEYS[f"{section}.{key}"] is Applies.RESTART]
    old = structs.asdict(getattr(running, section))
    return structs.replace(getattr(wanted, section), **{key: old[key] for key in fixed})
