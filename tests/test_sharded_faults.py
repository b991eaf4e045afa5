"""What becomes of a model on several ranks when one of them dies, stops, cannot start or is not like the others."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from daemon_faults import hold_load
from sharded_harness import THREE, TWO, Group, has_ended, listening, ports_of, ranks_of, tells_of
from tiny_models import place_models
from worker_harness import asked, children, pid_of, read, send, until, worker_engine, worker_pool

from mlxd.daemon.settings import ResidencySettings
from mlxd.engines.errors import EngineClosed, EngineCrashed, EngineDead, LoadError, LoadFailure, PrefillMemoryExceeded
from mlxd.engines.sharded.orders import Join, Prepare, Reach
from mlxd.engines.sharded.rank import Rank
from mlxd.engines.sharded.ranks import Ranks
from mlxd.engines.sharded.rendezvous import Place
from mlxd.engines.sharded.reports import Reached
from mlxd.engines.shards import RankLost, ShardHost, Shards
from mlxd.engines.types import EngineConfig, RequestState, SamplingParams
from mlxd.memory.probe import has_ended as is_dead

LONG = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=5, temperature=0)
# Seconds from the loss of a rank to the end of its requests.
BOUND = 2.0
SHELL = (sys.executable, str(Path(__file__).with_name("fake_rank.py")))
RANKS = [(TWO, 0), (TWO, 1), (THREE, 0), (THREE, 1), (THREE, 2)]


def every(*moments: str) -> list[Any]:
    """Every rank at every moment; those of three ranks take long, and are soak tests."""
    return [
        pytest.param(
            group,
            rank,
            moment,
            id=f"{group.name}-{rank}-{moment}",
            marks=pytest.mark.soak if group is THREE else (),
        )
        for group, rank in RANKS
        for moment in moments
    ]


def is_joined(pid: int) -> bool:
    return any(connection.status == "ESTABLISHED" for connection in psutil.Process(pid).net_connections("tcp"))


async def serves(group: Group, workers: object) -> None:
    """A new engine of the model answers, and leaves nothing."""
    engine = worker_engine(group.folder, workers, shards=group.shards)
    await engine.load()
    async with engine.generate(await asked(engine, "again", SHORT, "again")) as outputs:
        assert await read(outputs)
    assert await engine.close(EngineClosed("over"), 10)
    assert children() == []


@pytest.mark.parametrize(("group", "rank", "moment"), every("prefill", "decode", "idle"))
async def test_a_rank_that_is_killed_ends_the_model_alone_and_at_once(tmp_path, group, rank, moment):
    deaths: list[EngineDead] = []
    async with worker_pool(tmp_path) as workers:
        other = worker_engine(TWO.folder, workers)
        engine = worker_engine(
            group.folder, workers, shards=group.shards, prefill_chunk=4, context_length=4096, on_dead=deaths.append
        )
        await asyncio.gather(other.load(), engine.load())
        processes = [pid_of(engine), *(child.pid for child in ranks_of(pid_of(engine)))]
        ports = ports_of([*ranks_of(pid_of(engine))])
        victim = processes[rank]
        if moment == "idle":
            send(victim, signal.SIGKILL)
        else:
            text = "Count " * (300 if moment == "prefill" else 2)
            async with engine.generate(await asked(engine, text, LONG, "r")) as outputs:
                if moment == "prefill":
                    await until(lambda: any(each.state is RequestState.PREFILLING for each in engine.requests()))
                else:
                    await anext(outputs)
                send(victim, signal.SIGKILL)
                killed = time.monotonic()
                with pytest.raises(EngineCrashed) as raised:
                    await read(outputs)
                assert time.monotonic() - killed < BOUND
                assert tells_of(rank, str(raised.value))
        await until(lambda: bool(deaths), within=BOUND)
        await until(lambda: all(has_ended(pid) for pid in processes), within=BOUND)
        assert not listening(ports)
        async with other.generate(await asked(other, "who else", SHORT, "o")) as outputs:
            assert await read(outputs)
        assert await engine.close(EngineClosed("over"), 5)
        assert await other.close(EngineClosed("over"), 10)
        await serves(group, workers)


@pytest.mark.parametrize(("group", "rank", "at"), every("start", "weights"))
async def test_a_rank_that_is_killed_during_a_load_fails_the_load(tmp_path, group, rank, at):
    models = place_models(tmp_path / "models", {"held": group.folder})
    hold_load(models / "held")
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(models / "held", workers, shards=group.shards)
        loading = asyncio.create_task(engine.load())
        await until(lambda: engine.pid is not None and len(ranks_of(pid_of(engine))) == group.ranks - 1, within=30)
        processes = [pid_of(engine), *(child.pid for child in ranks_of(pid_of(engine)))]
        if at == "weights":
            # once they have joined each other they read the model, which is held
            await until(lambda: all(is_joined(pid) for pid in processes), within=30)
        send(processes[rank], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(LoadError) as raised:
            await loading
        assert time.monotonic() - killed < BOUND
        assert raised.value.reason is LoadFailure.CRASHED
        await until(lambda: all(has_ended(pid) for pid in processes), within=BOUND)
        assert await engine.close(EngineClosed("over"), 5)
        await serves(group, workers)


async def test_a_rank_that_is_killed_while_rank_0_joins_it_is_noticed_from_outside(tmp_path):
    """MLX holds rank 0's interpreter until all have joined."""
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=remote("dies-joining"))
        loading = asyncio.create_task(engine.load())
        await until(lambda: engine.pid is not None and len(ranks_of(pid_of(engine))) == 1, within=30)
        (rank,) = ranks_of(pid_of(engine))
        await until(lambda: is_dead(rank.pid), within=30)
        died = time.monotonic()
        with pytest.raises(LoadError, match="rank 1 on dies-joining is gone: it ended while all ranks joined each"):
            await loading
        assert time.monotonic() - died < BOUND
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []


async def test_a_rank_that_never_joins_is_given_up(tmp_path):
    async with worker_pool(tmp_path, patience=lambda: 1.5) as workers:
        engine = worker_engine(TWO.folder, workers, shards=remote("never-joins"))
        with pytest.raises(LoadError, match=r"its ranks did not join each other for \d s, so it was killed"):
            await engine.load()
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []


async def test_why_rank_0_cannot_join_is_told_although_the_others_end_then(tmp_path):
    async with worker_pool(tmp_path) as workers:
        # one has ended while the other still takes its time
        hosts = (*remote("waits").hosts, remote("stays").hosts[1])
        engine = worker_engine(TWO.folder, workers, shards=replace(remote("waits"), hosts=hosts, backend="nccl"))
        with pytest.raises(LoadError, match="rank 0 on localhost cannot join the others by nccl: Cannot initialize"):
            await engine.load()
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []


def test_a_rank_that_waits_for_others_to_join_ends_by_itself():
    """MLX holds its interpreter: it cannot even notice that rank 0 is gone."""
    shards = replace(TWO.shards, hosts=remote("studio").hosts, shell=SHELL, python=sys.executable, start_patience=1.0)
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    rank = Rank(shards, 1, lambda _, report: told.put(report), told.put)
    place = Place(shards, 0)
    try:
        rank.tell(Prepare(1, EngineConfig("m", TWO.folder, 100), shards))
        addresses = [place.address, told.get(timeout=30).address]
        rank.tell(Reach(addresses))
        place.reach(addresses)
        assert told.get(timeout=30) == Reached()
        rank.tell(Join())
        assert told.get(timeout=10) is rank
        # as a shell says it, and as it is
        assert rank.why() in ("its process ended with exit code 142", "its process was killed by SIGALRM")
    finally:
        place.leave()
        rank.end()


async def test_a_rank_that_is_stopped_while_nobody_asks_is_noticed(tmp_path):
    deaths: list[EngineDead] = []
    shards = replace(TWO.shards, patience=1.5)
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=shards, on_dead=deaths.append)
        await engine.load()
        (rank,) = ranks_of(pid_of(engine))
        send(rank.pid, signal.SIGSTOP)
        await until(lambda: bool(deaths), within=1.5 + BOUND)
        assert "rank 1 on localhost said nothing" in str(deaths[0])
        await until(lambda: has_ended(rank.pid), within=BOUND)
        assert await engine.close(EngineClosed("over"), 5)


async def test_ranks_end_with_a_rank_0_that_is_stopped_and_given_up(tmp_path):
    async with worker_pool(tmp_path, patience=lambda: 1.5) as workers:
        engine = worker_engine(TWO.folder, workers, shards=TWO.shards)
        await engine.load()
        processes = [pid_of(engine), *(child.pid for child in ranks_of(pid_of(engine)))]
        send(processes[0], signal.SIGSTOP)
        await until(lambda: all(has_ended(pid) for pid in processes), within=1.5 + 2 * BOUND)
        assert await engine.close(EngineClosed("over"), 5)


async def test_a_load_can_be_cancelled_while_a_host_does_not_answer(tmp_path):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=remote("hangs"))
        loading = asyncio.create_task(engine.load())
        await until(lambda: engine.pid is not None and len(ranks_of(pid_of(engine))) == 1, within=30)
        engine.cancel_load()
        with pytest.raises(LoadError) as raised:
            await loading
        assert raised.value.reason is LoadFailure.CANCELLED
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []


# -- other hosts -----------------------------------------------------------------------------------------------------


def remote(host: str) -> Shards:
    """Rank 0 here, and rank 1 behind a remote shell."""
    here = ShardHost("localhost", addresses=("127.0.0.1",))
    there = ShardHost(host, here=False, addresses=("127.0.0.1",))
    return Shards((here, there), shell=SHELL, python=sys.executable)


async def test_a_rank_behind_a_remote_shell_is_a_rank(tmp_path):
    async with worker_pool(tmp_path) as workers:
        alone = worker_engine(TWO.folder, workers)
        engine = worker_engine(TWO.folder, workers, shards=remote("studio"))
        said = []
        for each in (alone, engine):
            await each.load()
            async with each.generate(await asked(each, "hello", SHORT, "r")) as outputs:
                said.append("".join(output.text for output in await read(outputs)))
        assert said[0] == said[1]
        # the part of the other host is not in this one's books
        assert engine.info.weight_bytes < alone.info.weight_bytes
        for each in (alone, engine):
            assert await each.close(EngineClosed("over"), 10)
        assert children() == []


async def test_a_rank_of_another_host_ends_with_the_word_of_rank_0_in_the_middle_of_a_step(tmp_path):
    """Nothing of this machine ends it: only its input does, whatever MLX waits for."""
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=remote("studio"))
        await engine.load()
        there = [child.pid for child in psutil.Process(pid_of(engine)).children(recursive=True)]
        async with engine.generate(await asked(engine, "Count", LONG, "r")) as outputs:
            await anext(outputs)
            send(pid_of(engine), signal.SIGKILL)
            with pytest.raises(EngineCrashed):
                await read(outputs)
        await until(lambda: all(has_ended(pid) for pid in there), within=BOUND)
        assert await engine.close(EngineClosed("over"), 5)


async def test_a_prompt_waits_for_the_memory_of_every_host_and_is_told_which_was_short(tmp_path):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=remote("tight"), hold_timeout=0.5)
        await engine.load()
        with pytest.raises(PrefillMemoryExceeded, match="memory of rank 1 on tight"):
            async with engine.generate(await asked(engine, "Count " * 30, SHORT, "r")) as outputs:
                await read(outputs)
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []


async def test_a_rank_that_is_slow_for_a_moment_holds_the_answer_up_and_nothing_else(tmp_path):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=TWO.shards)
        await engine.load()
        params = replace(SHORT, max_tokens=60)
        async with engine.generate(await asked(engine, "Count", params, "before")) as outputs:
            whole = "".join(output.text for output in await read(outputs))
        (rank,) = ranks_of(pid_of(engine))
        async with engine.generate(await asked(engine, "Count", params, "slow")) as outputs:
            text = (await anext(outputs)).text
            send(rank.pid, signal.SIGSTOP)
            await until(lambda: engine.stats().heartbeat_age_s > 0.7)
            send(rank.pid, signal.SIGCONT)
            assert text + "".join(output.text for output in await read(outputs)) == whole
        assert await engine.close(EngineClosed("over"), 5)


async def test_a_rank_that_fails_in_a_step_says_what_it_was(tmp_path):
    deaths: list[EngineDead] = []
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=remote("breaks"), on_dead=deaths.append)
        await engine.load()
        async with engine.generate(await asked(engine, "Count", LONG, "r")) as outputs:
            with pytest.raises(EngineCrashed, match=r"rank 1 on breaks has failed: RuntimeError: out of memory, say"):
                await read(outputs)
        await until(lambda: bool(deaths))
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []


def test_the_rank_that_is_gone_is_told_of_although_another_has_failed_first(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILED", str(tmp_path / "failed"))
    os.mkfifo(tmp_path / "failed")
    shards = Shards((ShardHost("localhost"), *(ShardHost(name, here=False) for name in ("dies-second", "fails-first"))))
    lost: queue.SimpleQueue[RankLost] = queue.SimpleQueue()
    ranks = Ranks(EngineConfig("m", TWO.folder, 100), replace(shards, shell=SHELL, python=sys.executable), lost.put)
    try:
        ranks.start()
        ranks.loaded(lambda: False)
        ranks.tell(Join())
        said = [lost.get(timeout=10) for _ in range(3)]
    finally:
        ranks.close()
    assert lost.empty()
    assert said == [
        RankLost("rank 2 on fails-first has failed: the connection to a peer was lost", last=False),
        RankLost("rank 1 on dies-second is gone", last=False),
        RankLost("rank 1 on dies-second is gone: its process was killed by SIGKILL"),
    ]


async def test_a_rank_0_that_crashes_may_have_lost_another(tmp_path):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=TWO.shards)
        await engine.load()
        async with engine.generate(await asked(engine, "Count", LONG, "r")) as outputs:
            send(pid_of(engine), signal.SIGSEGV)
            with pytest.raises(EngineCrashed, match="by SIGSEGV, as MLX may be when another rank is gone"):
                await read(outputs)
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []


@pytest.mark.parametrize(
    ("host", "reason", "words"),
    [
        ("refuses", "crashed", "rank 1 on refuses is gone: its process ended with exit code 1"),
        ("garbage", "crashed", "rank 1 on garbage is gone: it sent what is no message"),
        ("older", "unsupported", "rank 1 on older has mlx 0.20.0 and this machine"),
        ("other-files", "unsupported", "rank 1 on other-files has other files in"),
        ("full", "out_of_memory", "rank 1 on full has 1 bytes left of the"),
        ("walled", "stalled", "rank 0 on localhost cannot reach rank 1 on walled at 127.0.0.1: Connection refused"),
        ("no-model", "not_found", "rank 1 on no-model: there is no"),
    ],
)
async def test_a_host_that_cannot_take_part_is_named(tmp_path, monkeypatch, host, reason, words):
    monkeypatch.setenv("MODELS", str(TWO.folder.parent))
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=remote(host))
        with pytest.raises(LoadError) as raised:
            await engine.load()
        assert words in str(raised.value)
        assert raised.value.reason == reason
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []


async def test_a_host_that_never_answers_is_given_up(tmp_path):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(TWO.folder, workers, shards=replace(remote("hangs"), start_patience=1.0))
        with pytest.raises(LoadError, match="nothing was heard of rank 1 on hangs within 1 s"):
            await engine.load()
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []
    # else the daemon's load_stall_timeout would be first, and name nobody
    assert TWO.shards.start_patience < ResidencySettings().load_stall_timeout


@pytest.mark.parametrize(
    ("model", "sharding", "words"),
    [
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "tensor", "3 num_attention_heads do not divide by 2"),
        ({}, "tensor", "1 num_key_value_heads do not divide by 2"),
        ({"kind": "llama"}, "pipeline", 'no pipeline for it; sharding = "tensor" may work'),
        ({"kind": "qwen2"}, "pipeline", "cannot be split over 2 hosts as pipeline"),
    ],
)
async def test_a_model_that_cannot_be_split_so_is_told(tmp_path, model, sharding, words):
    group = Group(f"odd-{'-'.join(map(str, model.values()))}", 2, model, sharding)
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(group.folder, workers, shards=group.shards)
        with pytest.raises(LoadError) as raised:
            await engine.load()
        assert words in str(raised.value)
        assert raised.value.reason is LoadFailure.UNSUPPORTED
        assert await engine.close(EngineClosed("over"), 5)
        assert children() == []
