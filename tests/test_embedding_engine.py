"""A real embedding engine on a lane: batches, cancels, faults, teardown; and what it shows to the registry."""

import asyncio
import threading
from array import array
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio
from embedding_harness import ask, embed, embedder, inputs, matrix, request
from engine_harness import lane_pool, until_idle, until_live
from tiny_encoders import build_encoder
from tiny_models import build_tiny_model, cached

from mlxd.engines.core import EngineCore
from mlxd.engines.embedding_engine import EmbeddingEngine
from mlxd.engines.embedding_runner import EmbeddingRunner
from mlxd.engines.embedding_types import EmbeddingRequest, EncoderInput
from mlxd.engines.engine_base import EngineState
from mlxd.engines.errors import (
    EngineClosed,
    EngineDead,
    EngineQueueFull,
    FootprintExceeded,
    InputTooLong,
    InvalidRequest,
    LoadError,
    ModelOwnershipError,
    PrefillMemoryExceeded,
    StepFailed,
    WrongModelKind,
)
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.types import EngineConfig, Request, SamplingParams

TEXTS = [f"import module_{number} " * (1 + number % 9) for number in range(40)]


# one event loop, and engines on the same lanes, for all of them
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lanes():
    async with lane_pool() as pool:
        yield pool


class Steps:
    """Lets the lane take so many steps as are released, and no more; a step_lock."""

    def __init__(self):
        self._left = threading.Semaphore(0)

    def release(self, steps):
        self._left.release(steps)

    def __enter__(self):
        assert self._left.acquire(timeout=20)

    def __exit__(self, *_):
        pass


@pytest.fixture(scope="session")
def tiny_encoder():
    return cached("encoder", build_encoder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_encoder, lanes):
    async with embedder(tiny_encoder, lanes) as engine:
        yield engine


class Gate:
    """Holds the lane before each step until it is opened; a step_lock."""

    def __init__(self):
        self.reached, self.open = threading.Event(), threading.Event()

    def __enter__(self):
        self.reached.set()
        assert self.open.wait(20)

    def __exit__(self, *_):
        pass


@pytest_asyncio.fixture(loop_scope="module")
async def gated(tiny_encoder, lanes):
    gate = Gate()
    async with embedder(tiny_encoder, lanes, step_lock=gate) as engine:
        try:
            yield engine, gate
        finally:
            gate.open.set()


async def test_a_text_has_the_same_vector_alone_and_beside_any_others(engine):
    alone = np.concatenate([await embed(engine, [text]) for text in TEXTS])
    together = await embed(engine, TEXTS)
    split = await asyncio.gather(*[embed(engine, TEXTS[start::7]) for start in range(7)])
    mixed = np.empty_like(alone)
    for start, part in enumerate(split):
        mixed[start::7] = part
    assert np.abs(together - alone).max() < 1e-5
    assert np.abs(mixed - alone).max() < 1e-5
    assert np.abs(alone[0] - alone[1]).max() > 0.01


async def test_a_cross_encoders_scores_do_not_depend_on_the_batch(tmp_path, lanes):
    folder = build_encoder(tmp_path / "m", scores=True)
    async with embedder(folder, lanes) as engine:
        pairs = engine.tokenizer.pairs("import os", TEXTS[::5], truncate=True)
        together = matrix(await ask(engine, EmbeddingRequest("all", tuple(pairs))))
        alone = [matrix(await ask(engine, EmbeddingRequest(f"r{n}", (pair,)))) for n, pair in enumerate(pairs)]
    assert np.abs(together - np.concatenate(alone)).max() < 1e-5


async def test_a_decoders_vectors_do_not_depend_on_the_batch(tmp_path, lanes):
    from tiny_encoders import add_modules

    folder = build_tiny_model(tmp_path / "m", size="micro", kind="qwen3")
    add_modules(folder, {"pooling_mode_lasttoken": True})
    async with embedder(folder, lanes) as engine:
        alone = np.concatenate([await embed(engine, [text]) for text in TEXTS[:9]])
        assert np.abs(await embed(engine, TEXTS[:9]) - alone).max() < 1e-5


async def test_two_thousand_inputs_come_back_in_their_order(engine):
    words = [f"x{number % 31}" for number in range(2048)]
    got = await embed(engine, words)
    alone = await embed(engine, words[:31])
    assert got.shape == (2048, 64)
    assert np.abs(got - np.tile(alone, (67, 1))[:2048]).max() < 1e-5
    assert engine.stats().prompt_tokens > 2048


async def test_figures_are_those_of_requests(gated):
    engine, gate = gated
    asked = [asyncio.create_task(ask(engine, request(engine, ["a", "b"]))) for _ in range(3)]
    await until_live(engine, 3)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.completion_tokens, stats.kv_bytes) == (0, 3, 0, 0)
    assert {one.state for one in engine.requests()} == {"waiting"}
    gate.open.set()
    outputs = await asyncio.gather(*asked)
    await until_idle(engine)
    assert engine.stats().prompt_tokens == sum(output.prompt_tokens for output in outputs) == 18
    assert engine.requests() == ()


async def test_a_cancelled_request_gives_what_it_has_and_another_goes_on(gated):
    engine, gate = gated
    one, other = request(engine, ["a"], "one"), request(engine, ["b"], "other")
    asked = [asyncio.create_task(ask(engine, each)) for each in (one, other)]
    await asyncio.to_thread(gate.reached.wait, 20)
    assert engine.cancel("one")
    assert not engine.cancel("nobody")
    gate.open.set()
    first, second = await asyncio.gather(*asked)
    assert second.vectors[0] is not None
    # its step was under way: it was done, or it is cancelled
    assert first.cancelled is (first.vectors[0] is None)


async def test_hundreds_of_cancels_leave_nothing_behind(engine):
    before = set(threading.enumerate())
    for start in range(0, 400, 200):
        tasks = [asyncio.create_task(ask(engine, request(engine, ["a b c"]))) for _ in range(200)]
        await asyncio.sleep(0)
        for number, task in enumerate(tasks):
            if number % 2:
                task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done[1::2])
        assert not any(isinstance(one, BaseException) for one in done[::2]), start
    await until_idle(engine)
    assert engine.requests() == ()
    assert set(threading.enumerate()) <= before
    assert (await embed(engine, ["still here"])).shape == (1, 64)


async def test_abort_all_ends_what_waits_and_the_engine_goes_on(gated):
    engine, gate = gated
    asked = [asyncio.create_task(ask(engine, request(engine, ["a"] * 300))) for _ in range(3)]
    await asyncio.to_thread(gate.reached.wait, 20)
    error = FootprintExceeded(2, 1, "limit")
    assert engine.abort_all(error) == 3
    gate.open.set()
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert ended == [error] * 3
    assert engine.abort_all(error) == 0
    assert (await embed(engine, ["a"])).shape == (1, 64)


async def test_closing_in_the_middle_ends_requests_with_the_given_error(tiny_encoder, lanes):
    gate = Gate()
    engine = EmbeddingEngine(EngineConfig("m", tiny_encoder, 512), lanes, step_lock=gate)
    await engine.load()
    asked = asyncio.create_task(ask(engine, request(engine, ["a"] * 3000)))
    await asyncio.to_thread(gate.reached.wait, 20)
    closing = asyncio.create_task(engine.close(EngineClosed("unloaded under it"), 20))
    gate.open.set()
    assert await closing
    with pytest.raises(EngineClosed, match="under it"):
        await asked
    assert engine.state is EngineState.CLOSED
    with pytest.raises(EngineClosed):
        engine.embed(EmbeddingRequest("r", (EncoderInput(array("i", [1])),)))
    assert await engine.close(EngineClosed("again"), 1)


async def test_an_engine_that_does_not_answer_is_given_up(tiny_encoder):
    async with lane_pool() as pool:
        gate = Gate()
        engine = EmbeddingEngine(EngineConfig("m", tiny_encoder, 512), pool, step_lock=gate)
        await engine.load()
        asked = asyncio.create_task(ask(engine, request(engine, ["a"])))
        await asyncio.to_thread(gate.reached.wait, 20)
        assert not await engine.close(EngineClosed("too late"), 0.01)
        with pytest.raises(EngineClosed, match="too late"):
            await asked
        gate.open.set()
        async with embedder(tiny_encoder, pool) as other:
            assert (await embed(other, ["a"])).shape == (1, 64)


async def test_a_request_too_many_is_refused_and_a_retune_counts_at_once(gated):
    engine, gate = gated
    engine.retune(replace(engine.config.limits, max_running=1, max_waiting=2))
    asked = [asyncio.create_task(ask(engine, request(engine, ["a"] * 50))) for _ in range(3)]
    await asyncio.to_thread(gate.reached.wait, 20)
    with pytest.raises(EngineQueueFull):
        engine.embed(request(engine, ["a"]))
    engine.retune(replace(engine.config.limits, max_waiting=3))
    last = asyncio.create_task(ask(engine, request(engine, ["a"])))
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(*asked, last)


async def test_requests_that_have_begun_count_too(tiny_encoder, lanes):
    steps = Steps()
    async with embedder(tiny_encoder, lanes, step_lock=steps, max_running=1, max_waiting=1) as engine:
        asked = [asyncio.create_task(ask(engine, request(engine, ["a"] * 100))) for _ in range(2)]
        await until_live(engine, 2)
        steps.release(2)
        async with asyncio.timeout(20):
            while engine.stats().running < 2:
                await asyncio.sleep(0.002)
        with pytest.raises(EngineQueueFull):
            engine.embed(request(engine, ["a"]))
        steps.release(100)
        await asyncio.gather(*asked)


async def test_what_was_loaded_and_computed_is_given_back_at_the_end(lanes, tmp_path):
    import mlx.core as mx

    folder = build_encoder(tmp_path / "m", hidden_size=256, intermediate_size=2048)

    async def use():
        async with embedder(folder, lanes) as engine:
            await embed(engine, TEXTS[:1])
            return mx.get_active_memory()

    await use()
    before = mx.get_active_memory()
    assert await use() > before + 5_000_000
    assert mx.get_active_memory() <= before + 100_000


async def test_a_forward_pass_that_raises_fails_its_request_alone(engine, monkeypatch):
    [poison] = inputs(engine, ["poison poison"])
    run = EmbeddingRunner.run

    def breaks(runner, batch):
        if poison in batch:
            raise RuntimeError("boom")
        return run(runner, batch)

    monkeypatch.setattr(EmbeddingRunner, "run", breaks)
    requests = [request(engine, ["import one", "import two"]) for _ in range(5)]
    requests[2] = request(engine, ["import one", "poison poison"])
    ended = await asyncio.gather(*[ask(engine, each) for each in requests], return_exceptions=True)
    assert [isinstance(one, StepFailed) for one in ended] == [False, False, True, False, False]


async def test_an_engine_whose_every_step_raises_dies_and_says_so(tiny_encoder, lanes, monkeypatch):
    deaths = []
    engine = EmbeddingEngine(EngineConfig("m", tiny_encoder, 512), lanes, on_dead=deaths.append)
    await engine.load()

    def breaks(runner, batch):
        raise RuntimeError("boom")

    monkeypatch.setattr(EmbeddingRunner, "run", breaks)
    ended = await asyncio.gather(*[ask(engine, request(engine, ["a"])) for _ in range(8)], return_exceptions=True)
    assert {type(one) for one in ended} <= {StepFailed, EngineDead}
    assert EngineDead in {type(one) for one in ended}
    assert len(deaths) == 1
    with pytest.raises(EngineDead):
        engine.embed(request(engine, ["a"]))
    assert await engine.close(EngineClosed("over"), 10)


async def test_a_model_whose_first_step_raises_is_not_loaded(tiny_encoder, lanes, monkeypatch):
    def breaks(runner, batch):
        raise RuntimeError("boom")

    monkeypatch.setattr(EmbeddingRunner, "run", breaks)
    with pytest.raises(LoadError) as caught:
        await EmbeddingEngine(EngineConfig("m", tiny_encoder, 512), lanes).load()
    assert caught.value.reason == "unsupported"


async def test_a_million_characters_are_cut_or_refused(engine):
    text = "import os " * 100_000
    assert np.isfinite(await embed(engine, [text])).all()
    with pytest.raises(InputTooLong):
        engine.tokenizer.inputs([text], truncate=False)


@pytest.mark.parametrize("tokens", [[], [-1], [600], [2**31 - 1]], ids=str)
async def test_tokens_that_the_model_does_not_have_are_refused(engine, tokens):
    with pytest.raises(InvalidRequest):
        engine.embed(EmbeddingRequest("r", (EncoderInput(array("i", tokens)),)))


async def test_more_tokens_than_the_model_takes_are_refused(engine):
    with pytest.raises(InputTooLong) as caught:
        engine.embed(EmbeddingRequest("r", (EncoderInput(array("i", [1])), EncoderInput(array("i", [1] * 129)))))
    assert (caught.value.number, caught.value.prompt_tokens, caught.value.context_length) == (1, 129, 128)


async def test_an_id_is_used_once_at_a_time(gated):
    engine, gate = gated
    asked = asyncio.create_task(ask(engine, request(engine, ["a"], "same")))
    await until_live(engine, 1)
    with pytest.raises(ModelOwnershipError):
        engine.embed(request(engine, ["b"], "same"))
    gate.open.set()
    await asked
    assert (await ask(engine, request(engine, ["b"], "same"))).vectors[0]


async def test_each_kind_of_engine_refuses_the_others_work(engine, micro_model, lanes):
    text = EngineCore(EngineConfig("text", micro_model, 512), lanes)
    with pytest.raises(WrongModelKind):
        text.embed(request(engine, ["a"]))
    with pytest.raises(WrongModelKind):
        engine.generate(Request("r", (1,), SamplingParams()))
    await engine.trim_prefix_cache(0)  # there is nothing to give up


async def test_what_never_fits_is_refused_before_anything_is_done_for_it(tiny_encoder, lanes):
    refused = []
    stake = MemoryShare().stake("m", lambda: 1000)
    async with embedder(tiny_encoder, lanes, memory=stake, on_refused=refused.append) as engine:
        with pytest.raises(PrefillMemoryExceeded) as caught:
            engine.embed(request(engine, ["a"]))
    assert refused == [caught.value]
    assert caught.value.estimated_bytes > caught.value.limit_bytes == 1000


async def test_memory_comes_back_after_room_was_made(tiny_encoder, lanes):
    room = 1000
    asked = []

    async def make_room(wanted):
        nonlocal room
        asked.append(wanted)
        room = 10**9

    share = MemoryShare(lambda: room)
    async with embedder(tiny_encoder, lanes, memory=share.stake("m"), prefill_eviction_callback=make_room) as engine:
        got = await embed(engine, ["a"])
    assert np.isfinite(got).all()
    assert len(asked) == 1
    assert share.spare() == 10**9


async def test_the_price_of_a_batch_is_learned_from_the_first_ones(engine):
    async def learned(rows):
        await embed(engine, ["x " * 120] * rows)
        return engine._run.price

    await learned(4)
    price = await learned(4)
    assert price.sizes
    assert 0 < price.estimate(1, 128, 128) < price.estimate(8, 128, 128) < 64 * 2**20


async def test_the_time_from_a_cancel_to_freed_is_told(tiny_encoder, lanes):
    freed = []
    gate = Gate()
    async with embedder(tiny_encoder, lanes, on_freed=freed.append, step_lock=gate) as engine:
        asked = asyncio.create_task(ask(engine, request(engine, ["a"] * 500)))
        await asyncio.to_thread(gate.reached.wait, 20)
        asked.cancel()
        await asyncio.wait([asked])
        gate.open.set()
        await until_idle(engine)
        await embed(engine, ["a"])
    assert len(freed) == 1
