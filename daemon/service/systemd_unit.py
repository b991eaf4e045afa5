"""The text of a systemd unit: one for `systemctl --user`, one for the whole machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.plan import OPEN_FILES, ServicePlan
from mlxd.daemon.units import Size

WATCHDOG_SECONDS = 120
"""A daemon whose event loop stands still for this long is ended and started again."""

_HARDENING = """\
# What needs a namespace or a device rule is left out: it would hide the GPU, the models or the memory limits.
# MemoryDenyWriteExecute is left out too: MLX compiles kernels while it runs.
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native"""
_NO_RETRY = """\
# 75 another mlxd works in the state directory, 76 address in use, 78 invalid configuration: a new try changes nothing.
RestartPreventExitStatus=75 76 78"""
_STATE = "%S/mlxd"
_DESCRIPTION = "mlxd, a model daemon for MLX"


def user_unit(plan: ServicePlan) -> str:
    """The unit of one user. Raises ServiceFailed for a path or a value that no unit can hold."""
    return _unit([], _service(plan, []), "default.target")


def system_unit(plan: ServicePlan, user: str) -> str:
    """The unit of the machine, run as `user` with a home of its own. Raises ServiceFailed as `user_unit` does."""
    identity = [
        f"User={user}",
        f"Group={user}",
        "# Its home: the state directory, API keys and models are below it unless the configuration says otherwise.",
        "StateDirectory=mlxd",
        "StateDirectoryMode=0700",
        f"WorkingDirectory={_STATE}",
        f"Environment=HOME={_STATE}",
        "CapabilityBoundingSet=",
    ]
    return _unit(["After=network.target"], _service(plan, identity), "multi-user.target")


def _unit(order: Sequence[str], service: Sequence[str], target: str) -> str:
    head = ["[Unit]", f"Description={_DESCRIPTION}", *order]
    return "\n".join([*head, "", "[Service]", *service, "", "[Install]", f"WantedBy={target}", ""])


def _service(plan: ServicePlan, identity: Sequence[str]) -> list[str]:
    limit = [f"MemoryMax={_limit(plan.memory_max)}"] if plan.memory_max is not None else []
    return [
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={_command(plan.command)}",
        "ExecReload=kill -HUP $MAINPID",
        *identity,
        *(f"Environment={_quoted(_escaped(f'{name}={value}'))}" for name, value in plan.environ.items()),
        "Restart=on-failure",
        "RestartSec=5",
        _NO_RETRY,
        "# The event loop says twice in this time that it goes round.",
        f"WatchdogSec={WATCHDOG_SECONDS}",
        "# The daemon asks for more if a changed configuration takes longer to stop.",
        f"TimeoutStopSec={plan.stop_seconds}",
        "KillMode=mixed",
        "# A worker that the kernel kills for memory is the daemon's to replace; the other models go on.",
        "OOMPolicy=continue",
        f"LimitNOFILE={OPEN_FILES}",
        "UMask=0077",
        *limit,
        "",
        _HARDENING,
    ]


def _limit(size: Size) -> str:
    """As systemd reads it, which has units of its own."""
    return str(size) if size.bytes is None else str(size.bytes)


def _command(words: Sequence[str]) -> str:
    program, *arguments = words
    if not Path(program).is_absolute() and not program.startswith("%"):
        raise ServiceFailed(f"expected an absolute path of the program, got {program!r}")
    # only arguments are searched for variables
    return " ".join([_quoted(_escaped(program)), *(_quoted(_escaped(word).replace("$", "$$")) for word in arguments)])


def _escaped(text: str) -> str:
    if not text.isprintable():
        raise ServiceFailed(f"a systemd unit cannot hold {text!r}")
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    plain = text.replace("\\", "").replace('"', "").replace("'", "")
    if text and plain == text and not any(char.isspace() for char in text) and ";" not in text:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
