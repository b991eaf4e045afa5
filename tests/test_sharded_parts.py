"""The parts of a model on several hosts, each by itself: how ranks find each other, start, speak and count memory."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sys
from pathlib import Path

import pytest
from sharded_harness import listening

from mlxd.engines.errors import LoadError
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.sharded.group_stake import GroupStake
from mlxd.engines.sharded.orders import Leave, Order, Ping, Step
from mlxd.engines.sharded.pipe import Pipe
from mlxd.engines.sharded.rank import command
from mlxd.engines.sharded.rendezvous import Place, joining, resolved
from mlxd.engines.shards import ShardHost, Shards

NAMES = ("MLX_RANK", "MLX_HOSTFILE", "MLX_JACCL_COORDINATOR", "MLX_IBV_DEVICES", "MLX_WORLD_SIZE")
NCCL = ("NCCL_HOST_IP", "NCCL_PORT", "CUDA_VISIBLE_DEVICES")
STUDIOS = (
    ShardHost("a", addresses=("10.0.0.1",), rdma=(None, "rdma_en2")),
    ShardHost("b", here=False, addresses=("10.0.0.2",), rdma=("rdma_en2", None)),
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Variables that are set leave with the test."""
    for name in (*NAMES, *NCCL):
        monkeypatch.setenv(name, "")


def joined(shards: Shards, rank: int, addresses: list[str]) -> dict[str, object]:
    """What MLX finds, with what is in files."""
    with joining(shards, rank, addresses):
        found: dict[str, object] = {name: os.environ[name] for name in (*NAMES, *NCCL) if os.environ[name]}
        for name in ("MLX_HOSTFILE", "MLX_IBV_DEVICES"):
            if name in found:
                found[name] = json.loads(Path(str(found[name])).read_text())
        return found


def test_a_ring_has_the_addresses_of_all():
    addresses = ["10.0.0.1:4000", "10.0.0.2:5000"]
    assert joined(Shards(STUDIOS), 1, addresses) == {"MLX_RANK": "1", "MLX_HOSTFILE": [[each] for each in addresses]}


def test_rdma_has_its_devices_and_rank_0_as_coordinator():
    found = joined(Shards(STUDIOS, backend="jaccl"), 0, ["10.0.0.1:4000", "10.0.0.2:5000"])
    assert found == {
        "MLX_RANK": "0",
        "MLX_JACCL_COORDINATOR": "10.0.0.1:4000",
        "MLX_IBV_DEVICES": [[None, "rdma_en2"], ["rdma_en2", None]],
    }


def test_nccl_gives_each_rank_of_a_host_a_device_of_its_own():
    here = ShardHost("a", addresses=("10.0.0.1",))
    shards = Shards((here, here, STUDIOS[1]), backend="nccl")
    addresses = ["10.0.0.1:4000", "10.0.0.1:4001", "10.0.0.2:5000"]
    found = [joined(shards, rank, addresses) for rank in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["0", "1", "0"]
    assert {(one["NCCL_HOST_IP"], one["NCCL_PORT"], one["MLX_WORLD_SIZE"]) for one in found} == {
        ("10.0.0.1", "4000", "3")
    }


def test_files_of_a_rendezvous_are_gone_afterwards():
    with joining(Shards(STUDIOS), 0, ["10.0.0.1:1", "10.0.0.2:1"]):
        file = Path(os.environ["MLX_HOSTFILE"])
        assert file.exists()
    assert not file.exists()
    assert not file.parent.exists()


def test_hosts_are_looked_up_and_loopback_is_no_address_for_others():
    both = resolved(Shards((ShardHost("localhost"), ShardHost("localhost"))))
    assert [host.addresses for host in both.hosts] == [("127.0.0.1",)] * 2
    with pytest.raises(LoadError, match=r"localhost is 127\.0\.0\.1 here, which no other host can reach"):
        resolved(Shards((ShardHost("localhost"), STUDIOS[1])))
    with pytest.raises(LoadError, match=r"host nowhere\.invalid has no address"):
        resolved(Shards((STUDIOS[0], ShardHost("nowhere.invalid", here=False))))


def test_ranks_reach_each_other_before_mlx_waits_for_them():
    shards = resolved(Shards((ShardHost("localhost"), ShardHost("localhost"))))
    first, second = Place(shards, 0), Place(shards, 1)
    addresses = [first.address, second.address]
    first.reach(addresses)
    second.be_reached()
    second.leave()
    # as MLX does: nothing of the connection is left at the port
    with socket.create_server(("127.0.0.1", int(second.address.rpartition(":")[2]))):
        second.reach(addresses)
    with pytest.raises(LoadError, match=r"rank 0 on localhost cannot reach rank 1 on localhost at 127\.0\.0\.1"):
        first.reach(addresses)
    first.leave()
    assert not listening({int(address.rpartition(":")[2]) for address in addresses})
    with pytest.raises(LoadError, match=r"192\.0\.2\.1 is no address of this machine"):
        Place(Shards((ShardHost("x", addresses=("192.0.2.1",)), shards.hosts[0])), 0)


def test_a_rank_that_nobody_reaches_says_who_did_not():
    place = Place(resolved(Shards((ShardHost("localhost"), ShardHost("localhost")), start_patience=0.05)), 1)
    with pytest.raises(LoadError, match="rank 0 on localhost did not connect to rank 1 on localhost: timed out"):
        place.be_reached()
    place.leave()


def test_a_rank_of_another_host_is_one_command_for_its_shell():
    shards = Shards(STUDIOS, shell=("ssh", "-p", "2222"), python="/opt/my python/bin/python", module="m.rank")
    *shell, host, line = command(shards, 1)
    assert (shell, host) == (["ssh", "-p", "2222"], "b")
    assert shlex.split(line) == ["/opt/my python/bin/python", "-P", "-m", "m.rank", "0"]
    assert command(shards, 0)[-3:] == ["-m", "m.rank", str(os.getpid())]
    assert command(shards, 0)[0] == sys.executable


def test_a_pipe_carries_messages_and_a_hint_waits_for_nobody():
    incoming, outgoing = os.pipe()
    pipe = Pipe(incoming, outgoing, Order)
    pipe.send(Step(3, chunk=64))
    pipe.hint(Ping())
    pipe.send(Leave())
    messages = pipe.receive()
    assert [next(messages) for _ in range(3)] == [Step(3, 64), Ping(), Leave()]
    os.set_blocking(outgoing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(outgoing, b"x" * 4096)
    os.set_blocking(outgoing, True)
    pipe.hint(Ping())  # full: it returns all the same
    os.close(incoming)
    with pytest.raises(BrokenPipeError):
        pipe.send(Leave())
    os.close(outgoing)


class Machine:
    """What a host has left; may be changed by a test."""

    def __init__(self, here: int | None, **there: int) -> None:
        self.here = here
        self.there = there

    def stake(self, ranks: int) -> tuple[MemoryShare, GroupStake]:
        share = MemoryShare(lambda: self.here, lambda: self.here, lambda: "memory.soft")
        return share, GroupStake(share.stake("m"), ranks, lambda: self.there)


def test_what_is_promised_here_is_for_every_rank_of_this_machine():
    share, stake = Machine(1000).stake(2)
    assert stake.claim(400) is None
    assert share.promised == 800
    assert stake.claim(600) == 500
    assert stake.limit == "memory.soft"
    stake.set(100, 1)
    assert share.promised == 200
    assert (stake.room(), stake.spare(), stake.growth_left()) == (500, 400, 500)


def test_the_host_that_has_least_bounds_all():
    machine = Machine(1000, b=300, c=700)
    share, stake = machine.stake(1)
    assert stake.claim(400) == 300
    assert stake.limit == "memory of b"
    assert share.promised == 0
    assert (stake.room(), stake.growth_left()) == (300, 300)
    machine.there["b"] = 2000
    assert stake.claim(400) is None
    assert stake.claim(900) == 700
    assert stake.limit == "memory of c"
    machine.here = 500
    assert stake.room() == 500
    assert stake.limit == "memory.soft"


def test_without_any_limit_there_is_none():
    _, stake = Machine(None).stake(2)
    assert stake.claim(10**12) is None
    assert stake.room() is None
    _, stake = Machine(None, b=5).stake(2)
    assert (stake.claim(4), stake.claim(6), stake.room()) == (None, 5, 5)
