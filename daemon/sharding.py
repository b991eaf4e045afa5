"""Spreads models over the hosts of their `[[model]]` entries."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import msgspec

from mlxd.daemon.config_errors import Problem, dotted
from mlxd.daemon.config_rules import Unexpected
from mlxd.daemon.config_schema import FEWEST_HOSTS
from mlxd.daemon.settings import ModelSettings, Settings
from mlxd.engines.shards import Backend, ShardHost, Shards
from mlxd.registry.spec import ModelKind, ModelSpec


class _Host(msgspec.Struct):
    ssh: str
    ips: list[str] = []
    rdma: list[str | None] = []


class _Hostfile(msgspec.Struct):
    """As `mlx.launch` and `mlx.distributed_config` have it."""

    hosts: list[_Host]
    backend: Backend | None = None
    envs: list[str] = []


def add_shards(settings: Settings, specs: dict[str, ModelSpec]) -> list[Problem]:
    """Lay the ranks over the specs of the entries that name hosts; what is wrong with the others."""
    problems: list[Problem] = []
    for entry in settings.model:
        if not entry.is_sharded or entry.name not in specs:
            continue
        try:
            shards = _shards(entry, specs[entry.name])
        except Unexpected as error:
            key = "hosts" if entry.hosts else "hostfile"
            problems.append(Problem(str(error), dotted(("model", entry.name, key))))
            continue
        spec = specs[entry.name]
        specs[entry.name] = replace(
            spec,
            shards=shards,
            weight_bytes=shards.share(spec.weight_bytes),
            kv_bytes_per_token=shards.share(spec.kv_bytes_per_token),
        )
    return problems


def _shards(entry: ModelSettings, spec: ModelSpec) -> Shards:
    """Raises Unexpected for hosts that cannot be followed, and for what a model on several hosts cannot have."""
    _check_alone(entry, spec)
    file = _Hostfile([_Host(name) for name in entry.hosts])
    if entry.hostfile is not None:
        file = _read(entry.hostfile)
    hosts = tuple(_host(host) for host in file.hosts)
    backend = entry.backend or file.backend or "ring"
    _check_hosts(hosts, backend)
    return Shards(
        hosts,
        entry.sharding,
        backend,
        env=tuple(file.envs),
        shell=tuple(shlex.split(entry.remote_shell)),
        python=entry.remote_python or sys.executable,
    )


def _check_alone(entry: ModelSettings, spec: ModelSpec) -> None:
    """What is accepted must have an effect."""
    if spec.kind is not ModelKind.TEXT:
        raise Unexpected(f"expected no hosts, because {entry.name} is no text model ({spec.kind})")
    if entry.adapters:
        raise Unexpected("expected no hosts, because adapters cannot be split; take one of both out")
    without = {"draft": None, "isolation": "process", "prefix_cache_disk": "off"}
    for key, value in without.items():
        if entry.engine.get(key, value) != value:
            raise Unexpected(f"expected no hosts beside engine.{key}; take one of both out")


def _check_hosts(hosts: tuple[ShardHost, ...], backend: Backend) -> None:
    if len(hosts) < FEWEST_HOSTS:
        raise Unexpected(f"expected {FEWEST_HOSTS} hosts or more, got {len(hosts)}")
    if not hosts[0].here:
        raise Unexpected(f'expected this machine first, as "localhost" or by its own address, got "{hosts[0].name}"')
    if backend == "jaccl" and any(len(host.rdma) != len(hosts) for host in hosts):
        raise Unexpected("expected a hostfile with an rdma list for each host, which backend jaccl needs")


def _read(path: Path) -> _Hostfile:
    try:
        raw = json.loads(path.read_bytes())
        file = msgspec.convert({"hosts": raw} if isinstance(raw, list) else raw, _Hostfile)
    except OSError as error:
        raise Unexpected(f"expected a hostfile as mlx.launch takes it: {error.strerror or error}: {path}") from error
    except (ValueError, RecursionError) as error:
        raise Unexpected(f"expected a hostfile as mlx.launch takes it, but {path} is none: {error}") from error
    if any("=" not in each for each in file.envs):
        raise Unexpected(f"expected NAME=VALUE in the envs of {path}")
    return file


def _host(host: _Host) -> ShardHost:
    return ShardHost(host.ssh, _is_here(host.ssh), tuple(host.ips), tuple(host.rdma))


def _is_here(name: str) -> bool:
    """Whether a host is this machine, without a look-up in the network."""
    own = socket.gethostname().casefold()
    if name.casefold() in {"localhost", own, own.removesuffix(".local")}:
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    if address.is_loopback:
        return True
    with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:  # noqa: PLR2004
        try:
            probe.bind((name, 0))
        except OSError:
            return False
    return True
