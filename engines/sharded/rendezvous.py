"""How ranks find each other: what MLX's communication backends read, in the form in which `mlx.launch` sets it."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.shards import Shards

# Seconds that a connection between two hosts may take.
REACHING = 5.0


def resolved(shards: Shards) -> Shards:
    """With an address for each host. Raises LoadError for one that has none which the others can reach."""
    hosts = tuple(replace(host, addresses=host.addresses or (_address(host.name),)) for host in shards.hosts)
    loopback = [host for host in hosts if ip_address(host.addresses[0]).is_loopback]
    if loopback and len(loopback) < len(hosts):
        message = (
            f"{loopback[0].name} is {loopback[0].addresses[0]} here, which no other host can reach; name its address"
        )
        raise LoadError(LoadFailure.UNSUPPORTED, message)
    return replace(shards, hosts=hosts)


def _address(name: str) -> str:
    try:
        found = socket.getaddrinfo(name, 0, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise LoadError(LoadFailure.UNSUPPORTED, f"host {name} has no address: {error}") from error
    return str(found[0][4][0])


class Place:
    """Where a rank will be: a port of its own that others can connect to, until it is left to MLX.

    `host` is a name or an IPv4 address of this machine; else it raises LoadError.
    """

    def __init__(self, shards: Shards, rank: int) -> None:
        self._shards = shards
        self._rank = rank
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        host = shards.hosts[rank].addresses[0]
        try:
            # what was connected here must not keep MLX from the port
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, 0))
            self._socket.listen()
        except OSError as error:
            self.leave()
            message = f"{host} is no address of this machine: {error.strerror or error}"
            raise LoadError(LoadFailure.UNSUPPORTED, message) from error
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    def reach(self, addresses: Sequence[str]) -> None:
        """Connect to the rank that this one will talk to. Raises LoadError: MLX would wait for it for ever."""
        following = (self._rank + 1) % len(addresses)
        host, _, port = addresses[following].rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACHING).close()
        except OSError as error:
            there = f"{self._shards.title(following)} at {host}"
            message = f"{self._shards.title(self._rank)} cannot reach {there}: {error.strerror or error}"
            raise LoadError(LoadFailure.STALLED, message) from error

    def be_reached(self) -> None:
        """Wait until the rank before this one has connected. Raises LoadError."""
        self._socket.settimeout(self._shards.start_patience)
        try:
            reached, _ = self._socket.accept()
            with reached:
                # closed by the other end first, it leaves nothing at this port
                reached.settimeout(REACHING)
                reached.recv(1)
        except OSError as error:
            before = self._shards.title((self._rank - 1) % self._shards.size)
            message = f"{before} did not connect to {self._shards.title(self._rank)}: {error.strerror or error}"
            raise LoadError(LoadFailure.STALLED, message) from error

    def leave(self) -> None:
        """From here on the port is free."""
        self._socket.close()


@contextmanager
def joining(shards: Shards, rank: int, addresses: Sequence[str]) -> Iterator[None]:
    """Within it MLX's group of these ranks can be joined. Raises OSError where no file can be written."""
    with tempfile.TemporaryDirectory(prefix="mlxd-rank-") as folder:
        os.environ.update(_variables(shards, rank, addresses, Path(folder)))
        yield


def _variables(shards: Shards, rank: int, addresses: Sequence[str], folder: Path) -> dict[str, str]:
    common = {"MLX_RANK": str(rank)}
    match shards.backend:
        case "ring":
            hosts = _written(folder / "hosts.json", [[address] for address in addresses])
            return {**common, "MLX_HOSTFILE": hosts}
        case "jaccl":
            devices = _written(folder / "devices.json", [list(host.rdma) for host in shards.hosts])
            return {**common, "MLX_JACCL_COORDINATOR": addresses[0], "MLX_IBV_DEVICES": devices}
        case "nccl":
            host, _, port = addresses[0].rpartition(":")
            places = [one.name for one in shards.hosts[:rank]].count(shards.hosts[rank].name)
            nccl = {"NCCL_HOST_IP": host, "NCCL_PORT": port, "MLX_WORLD_SIZE": str(shards.size)}
            return {**common, **nccl, "CUDA_VISIBLE_DEVICES": str(places)}


def _written(file: Path, value: object) -> str:
    file.write_text(json.dumps(value))
    return str(file)
