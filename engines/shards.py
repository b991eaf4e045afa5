"""How a model is spread over several hosts: which rank runs where, and how they speak with each other. No MLX here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sharding = Literal["tensor", "pipeline"]
Backend = Literal["ring", "jaccl", "nccl"]

RANK_MODULE = "mlxd.engines.sharded"
"""What a rank runs where nothing measures its host's memory."""


@dataclass(frozen=True, slots=True)
class ShardHost:
    """The host of one rank: its name for the remote shell, addresses at which the others reach it, and the RDMA devices
    that lead to each of them.

    `here` when it is the machine that the daemon runs on.
    """

    name: str
    here: bool = True
    addresses: tuple[str, ...] = ()
    rdma: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Shards:
    """The ranks in order. `tensor` splits every layer, `pipeline` gives each rank some layers.

    `backend` is MLX's. `env` are variables for all ranks, as NAME=VALUE. Ranks of other hosts are started through
    `shell`, to which the host and one command are added; there `python` runs `module`. A rank may be silent for
    `patience` seconds, None for ever, and its host may take `start_patience` seconds until it has found the model.
    """

    hosts: tuple[ShardHost, ...]
    sharding: Sharding = "tensor"
    backend: Backend = "ring"
    env: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    python: str = ""
    module: str = RANK_MODULE
    patience: float | None = 30.0
    start_patience: float = 60.0

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)

    @property
    def here(self) -> int:
        """How many of them run on this machine."""
        return sum(host.here for host in self.hosts)

    @property
    def variables(self) -> dict[str, str]:
        """`env` by names."""
        return {name: value for name, _, value in (each.partition("=") for each in self.env)}

    def share(self, nbytes: int) -> int:
        """The part of a model's bytes that this machine has."""
        return -(-nbytes * self.here // self.size)

    def title(self, rank: int) -> str:
        """A rank as a person knows it."""
        return f"rank {rank} on {self.hosts[rank].name}"


@dataclass(frozen=True, slots=True)
class Joining:
    """Rank 0 joins the others, and can do nothing else until all have joined. `pids` are the processes of the others,
    or of their remote shells, by their titles; none any more once it is over.
    """

    pids: dict[str, int]


@dataclass(frozen=True, slots=True)
class RankLost:
    """A part of the model on another host, or in another process, is gone: nothing can go on without it. More is about
    to be known if it is not the `last` word.
    """

    why: str
    last: bool = True
