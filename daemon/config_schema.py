"""Which keys each table takes, and the rule for each of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from mlxd.daemon import settings
from mlxd.daemon.config_hosts import (
    address_complaint,
    host_complaint,
    origin_complaint,
    remote_host_complaint,
    repo_complaint,
    server_complaint,
)
from mlxd.daemon.config_quantities import byte_count, duration, size
from mlxd.daemon.config_rules import Rule, boolean, choice, integer, list_of, number, path, secret, text, unshown

_TICK = 0.001
_WATCH_TICK = 0.1
_MAX_SEED = 2**63 - 1
MAX_NAME = 200
FEWEST_HOSTS = 2


def name_complaint(name: str) -> str | None:
    """For the name of a model, alias or preset, which becomes part of URLs."""
    if not name or len(name) > MAX_NAME:
        return f"expected a name of 1 to {MAX_NAME} characters"
    if not name.isprintable() or " " in name:
        return "expected a name without spaces and control characters"
    if any(part in {"", ".", ".."} for part in name.split("/")):
        return 'expected a name whose parts between slashes are not empty, "." or ".."'
    return None


def _peer_complaint(name: str) -> str | None:
    """For the name of a peer, which stands before a slash in names of models."""
    return name_complaint(name) or ("expected a name without a slash" if "/" in name else None)


def _key_complaint(key: str) -> str | None:
    return None if key.isascii() and key.isprintable() and " " not in key else "expected a key as it is sent"


def _pattern_complaint(pattern: str) -> str | None:
    sound = 0 < len(pattern) <= MAX_NAME and pattern.isprintable() and " " not in pattern
    return None if sound else 'expected a name of a model or a pattern, such as "*" or "mlx-community/*"'


def _command_complaint(command: str) -> str | None:
    try:
        sound = command.isprintable() and shlex.split(command)
    except ValueError:
        sound = False
    return None if sound else 'expected a command to which a host is added, such as "ssh -o BatchMode=yes"'


def _word_complaint(path: str) -> str | None:
    return None if path and path.isprintable() else "expected the path of a Python with mlxd, on the other hosts"


def _stop_complaint(stop: str) -> str | None:
    return None if stop else "expected a stop string that is not empty"


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what it becomes, the rules of its keys, and defaults that depend on the home folder."""

    kind: type[Struct]
    rules: Mapping[str, Rule]
    home_defaults: Mapping[str, Any] = field(default_factory=dict)


SECTIONS: Mapping[str, Table] = {
    "server": Table(
        settings.ServerSettings,
        {
            "host": text(address_complaint),
            "port": integer(0, 65535),
            "unix_socket": path(optional=True),
            "allowed_hosts": list_of(text(host_complaint)),
            "cors_origins": list_of(text(origin_complaint)),
            "max_body": byte_count(),
            "keepalive_interval": duration(_TICK, never=True),
            "drain_timeout": duration(),
            "state_dir": path(),
        },
        {"state_dir": settings.STATE_DIR},
    ),
    "auth": Table(settings.AuthSettings, {"keys_file": path()}, {"keys_file": settings.KEYS_FILE}),
    "models": Table(
        settings.ModelsSettings,
        {
            "dirs": list_of(path()),
            "hf_cache": boolean(),
            "default": text(name_complaint, optional=True),
            "autoload": boolean(),
            "preload": list_of(text(name_complaint)),
            "restore": boolean(),
            "ttl": duration(never=True),
            "watch_interval": duration(_WATCH_TICK, never=True),
        },
        {"dirs": [settings.MODELS_DIR]},
    ),
    "residency": Table(
        settings.ResidencySettings,
        {
            "max_loaded": integer(0),
            "max_loading": integer(1),
            "queue_size": integer(1),
            "queue_timeout": duration(),
            "max_wait": duration(never=True),
            "min_residency": duration(),
            "load_stall_timeout": duration(_TICK, never=True),
            "unload_timeout": duration(),
            "retry_backoff": duration(),
        },
    ),
    "memory": Table(
        settings.MemorySettings,
        {"ceiling": size("auto"), "soft": size(), "poll_interval": duration(0.01)},
    ),
    "engine": Table(
        settings.EngineSettings,
        {
            "isolation": choice("thread", "process"),
            "step_lock": boolean(),
            "blas": path("auto", "off"),
            "max_running": integer(1),
            "max_waiting": integer(1),
            "context_length": integer(0),
            "max_tokens": integer(0),
            "prefill_chunk": integer(1),
            "max_stall": duration(_TICK, never=True),
            "prefix_cache": size("auto", "off"),
            "prefix_cache_disk": size("off", percent=False),
        },
    ),
    "images": Table(
        settings.ImagesSettings,
        {
            "max_count": integer(1),
            "max_bytes": byte_count(),
            "max_pixels": integer(1),
            "remote_hosts": list_of(text(remote_host_complaint)),
        },
    ),
    "supervision": Table(
        settings.SupervisionSettings,
        {
            "answer_timeout": duration(1, never=True),
            "hang_timeout": duration(1, never=True),
            "loop_timeout": duration(1, never=True),
            "exit_on_hang": boolean(),
        },
    ),
    "log": Table(
        settings.LogSettings,
        {
            "level": choice("debug", "info", "warning", "error"),
            "format": choice("auto", "console", "json"),
            "file": path(optional=True),
            "stderr": boolean(),
            "prompts": boolean(),
        },
    ),
}

WHOLE_DAEMON = frozenset({"blas", "step_lock"})
"""Keys of [engine] that hold for the process, so that no single model can override them."""

HOST_RULES: Mapping[str, Rule] = {
    "hosts": list_of(text(address_complaint), repeats=True),
    "hostfile": path(),
}
SHARD_RULES: Mapping[str, Rule] = {
    "sharding": choice("tensor", "pipeline"),
    "backend": choice("ring", "jaccl", "nccl"),
    "remote_shell": text(_command_complaint),
    "remote_python": text(_word_complaint),
}
"""Keys of an entry that say nothing without one of HOST_RULES."""

MODEL_RULES: Mapping[str, Rule] = {
    "name": text(name_complaint),
    "path": path(),
    "repo": text(repo_complaint),
    "aliases": list_of(text(name_complaint)),
    "pinned": boolean(),
    "ttl": duration(never=True),
    **HOST_RULES,
    **SHARD_RULES,
}
MODEL_TABLES = frozenset({"adapters", "engine", "sampling", "presets"})
ADAPTER_NAME = text(name_complaint)
ADAPTER_PATH = path()

DRAFT_RULES: Mapping[str, Rule] = {
    "draft": text(name_complaint, optional=True),
    "draft_tokens": integer(1, 16),
}
"""Keys of a model's engine table that [engine] does not take, because they are about this one model."""

OVERRIDE_RULES: Mapping[str, Rule] = {
    **{key: rule for key, rule in SECTIONS["engine"].rules.items() if key not in WHOLE_DAEMON},
    **DRAFT_RULES,
}

SAMPLING_RULES: Mapping[str, Rule] = {
    "temperature": number(0, 5),
    "top_p": number(0, 1, above=True),
    "top_k": integer(0),
    "min_p": number(0, 1),
    "xtc_probability": number(0, 1),
    "xtc_threshold": number(0, 0.5),
    "seed": integer(0, _MAX_SEED),
    "max_tokens": integer(1),
    "stop": list_of(text(_stop_complaint), single=True),
    "repetition_penalty": number(0, 10, above=True),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
}

PEER_RULES: Mapping[str, Rule] = {
    "name": text(_peer_complaint),
    "url": unshown(text(server_complaint)),
    "key": secret(_key_complaint),
    "models": list_of(text(_pattern_complaint)),
    "priority": integer(-1000, 1000),
    "timeout": duration(1, never=True),
}

PRESET_RULES: Mapping[str, Rule] = {"name": text(name_complaint)}
PRESET_TABLES = frozenset({"sampling", "template"})


def dotted_keys() -> dict[str, Rule]:
    """Every key that a flag or an environment variable can set, as `section.key`."""
    return {f"{name}.{key}": rule for name, table in SECTIONS.items() for key, rule in table.rules.items()}
