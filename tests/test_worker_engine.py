"""An engine in a process of its own is the same engine: answers, counts, memory, cancels, logs, nothing left."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from embedding_harness import ask as ask_encoder
from engine_harness import lane_pool
from msgspec import structs
from structlog.testing import capture_logs
from tiny_encoders import build_encoder
from tiny_models import build_tiny_model, cached
from tiny_vision import png, tiny_vision_model
from vision_harness import user
from worker_harness import children, pid_of, read, until, worker_engine, worker_pool

from mlxd.daemon.tokenizer_threads import TokenizerThreads
from mlxd.engines.core import EngineCore
from mlxd.engines.embedding_engine import EmbeddingEngine
from mlxd.engines.embedding_types import EmbeddingRequest
from mlxd.engines.engine_run import EngineHost
from mlxd.engines.errors import (
    EngineClosed,
    FootprintExceeded,
    InvalidRequest,
    LoadError,
    LoadFailure,
    MemoryWaitTimeout,
    PrefillMemoryExceeded,
)
from mlxd.engines.guidance import check_guide
from mlxd.engines.memory_share import OFF, Brake, MemoryShare
from mlxd.engines.types import (
    ChatFormat,
    EngineConfig,
    Guide,
    GuideKind,
    Request,
    RequestOutput,
    SamplingParams,
    Timing,
)

GREEDY = SamplingParams(max_tokens=24, temperature=0)
LONG = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)
SAMPLINGS = [
    GREEDY,
    SamplingParams(max_tokens=24, temperature=1.0, seed=7, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(max_tokens=24, temperature=0, logprobs=3, logit_bias={5: 2.0, 9: -100.0}),
    SamplingParams(max_tokens=24, temperature=0, min_tokens=20, stop=("e", "import", "\ud800")),
]
SCHEMA = Guide(GuideKind.JSON_SCHEMA, '{"type":"object","properties":{"a":{"enum":[1,2]}},"required":["a"]}')
_ids = count(1)


@pytest.fixture(scope="module")
def model() -> Path:
    return cached("tiny", lambda out: build_tiny_model(out, size="tiny"))


@asynccontextmanager
async def hosts(folder: Path) -> AsyncIterator[Sequence[EngineHost]]:
    """Lanes, and workers."""
    async with lane_pool() as lanes, worker_pool(folder) as workers:
        yield lanes, workers


async def on_thread(work: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(work, *arguments)


async def request_of(engine: EngineCore, *messages: Any, sampling: SamplingParams = GREEDY, **options: Any) -> Request:
    prompt = await on_thread(engine.tokenizer.encode_prompt, messages)
    return Request(f"w{next(_ids)}", tuple(prompt.tokens), sampling, images=prompt.images, **options)


async def answer(engine: EngineCore, request: Request) -> RequestOutput:
    """The whole answer, without what differs from run to run."""
    async with engine.generate(request) as outputs:
        whole = RequestOutput.joined(await read(outputs))
    return structs.replace(whole, timing=Timing())


async def closed(engine: EngineCore | EmbeddingEngine) -> None:
    assert await engine.close(EngineClosed("over"), 20)


async def answers_on(host: EngineHost, model: Path) -> list[Any]:
    """Everything that an engine on this host says: alone, together, guided, and again from kept prefixes."""
    engine = EngineCore(EngineConfig("tiny", model, 2048, prefill_chunk=64, prefix_cache_bytes=10**8), host)
    await engine.load()
    try:
        said: list[Any] = []
        chats = [user(f"{number} import os, please " * (1 + 30 * number)) for number in range(len(SAMPLINGS))]
        requests = [
            await request_of(engine, chat, sampling=sampling) for chat, sampling in zip(chats, SAMPLINGS, strict=True)
        ]
        said += [await answer(engine, request) for request in requests]
        again = [replace(request, id=f"again {request.id}") for request in requests]
        said += await asyncio.gather(*[answer(engine, request) for request in again])
        guide = await on_thread(check_guide, engine.tokenizer, SCHEMA)
        guided = replace(GREEDY, guide=guide, max_tokens=40)
        said.append(await answer(engine, await request_of(engine, chats[0], sampling=guided, chat=ChatFormat())))
        tokens = {each.token for output in said for each in output.logprobs}
        said.append({token: engine.tokenizer.token_bytes(token) for token in sorted(tokens)})
        generated = sum(each.usage.completion_tokens for each in said if isinstance(each, RequestOutput))
        # a process tells of its books now and then
        await until(lambda: engine.stats().completion_tokens == generated)
        stats = engine.stats()
        said.append((stats.prompt_tokens, stats.completion_tokens, stats.cached_tokens, engine.info))
        said.append(await on_thread(facts, engine))
        return said
    finally:
        await closed(engine)


def facts(engine: EngineCore) -> list[Any]:
    tokenizer = engine.tokenizer
    return [
        tokenizer.end_tokens,
        tokenizer.size,
        tokenizer.has_chat_template,
        tokenizer.has_tools,
        tokenizer.tool_markers,
        tokenizer.has_reasoning,
        tokenizer.takes_images,
        tokenizer.template_reads("messages"),
        tokenizer.template_reads("no_such_variable"),
        tokenizer.encode("import os"),
        tokenizer.encode_chat([user("hello")]),
        tokenizer.render_chat([user("a lone \ud800 surrogate")], {"add_generation_prompt": False}),
    ]


async def test_answers_are_the_same_byte_for_byte(tmp_path, model):
    async with hosts(tmp_path) as (lanes, workers):
        here, there = [await answers_on(host, model) for host in (lanes, workers)]
    assert len(here) == len(there) == 12
    for mine, theirs in zip(here, there, strict=True):
        assert mine == theirs


async def test_images_are_seen_the_same_way(tmp_path):
    folder = tiny_vision_model("qwen2_vl")

    async def answers(host: EngineHost) -> list[Any]:
        config = EngineConfig("seer", folder, 2048, prefill_chunk=64, vision=True, prefix_cache_bytes=10**8)
        engine = EngineCore(config, host)
        await engine.load()
        try:
            chats = [[user("What is", png("a"), "and", png("b"))], [user(png("a")), user("no image")]]
            requests = [await request_of(engine, *chat) for chat in chats]
            shown = [[(image.digest, image.tokens, image.nbytes) for image in one.images.images] for one in requests]
            nbytes = [(one.images.nbytes, one.images.tokens) for one in requests]
            return [*await asyncio.gather(*[answer(engine, one) for one in requests]), shown, nbytes]
        finally:
            await closed(engine)

    async with hosts(tmp_path) as (lanes, workers):
        assert await answers(lanes) == await answers(workers)


async def test_vectors_are_the_same(tmp_path):
    folder = cached("encoder", build_encoder)
    texts = ["import os", "a much longer text " * 20, "x"]

    async def vectors(host: EngineHost) -> Any:
        engine = EmbeddingEngine(EngineConfig("encoder", folder, 512), host)
        await engine.load()
        try:
            inputs = await on_thread(lambda: engine.tokenizer.inputs(texts, truncate=True))  # type: ignore[attr-defined]
            output = await ask_encoder(engine, EmbeddingRequest("e", tuple(inputs)))
            return inputs, output.vectors, output.prompt_tokens, engine.info
        finally:
            await closed(engine)

    async with hosts(tmp_path) as (lanes, workers):
        assert await vectors(lanes) == await vectors(workers)


async def test_what_is_wrong_is_said_in_the_same_words(tmp_path, model):
    async def words(host: EngineHost) -> list[str]:
        engine = EngineCore(EngineConfig("tiny", model, 2048), host)
        await engine.load()
        said = []
        bad = [
            lambda: engine.tokenizer.render_chat([{"role": "user", "content": {}}], None, [{"type": "function"}]),
            lambda: check_guide(engine.tokenizer, Guide(GuideKind.REGEX, "(")),
            lambda: check_guide(engine.tokenizer, Guide(GuideKind.JSON_SCHEMA, '{"type":"nothing"}')),
        ]
        for call in bad:
            with pytest.raises(InvalidRequest) as raised:
                await on_thread(call)
            said.append(f"{raised.value} {raised.value.param}")
        await closed(engine)
        return said

    async with hosts(tmp_path) as (lanes, workers):
        assert await words(lanes) == await words(workers)


async def test_a_model_that_cannot_be_loaded_fails_for_its_own_reason(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(broken, workers)
        with pytest.raises(LoadError) as raised:
            await engine.load()
        assert raised.value.reason is LoadFailure.BAD_FILES
        assert not children()


async def test_a_cancel_keeps_and_an_abort_drops_what_was_generated(tmp_path, model):
    freed: list[float] = []
    async with worker_pool(tmp_path) as workers:
        engine = EngineCore(EngineConfig("tiny", model, 2048), workers, on_freed=freed.append)
        await engine.load()
        async with engine.generate(await request_of(engine, user("Count"), sampling=LONG)) as outputs:
            first = await anext(outputs)
            assert engine.cancel(outputs.request.id)
            last = (await read(outputs))[-1]
            assert last.cancelled
            assert last.usage.completion_tokens >= first.usage.completion_tokens
        async with engine.generate(await request_of(engine, user("Count"), sampling=LONG)) as outputs:
            await anext(outputs)
        await until(lambda: engine.stats().running == 0 and len(freed) == 2)
        assert engine.stats().kv_bytes == 0
        await closed(engine)


async def test_all_are_aborted_with_the_very_error_that_was_given(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        async with engine.generate(await request_of(engine, user("Count"), sampling=LONG)) as outputs:
            await anext(outputs)
            error = FootprintExceeded(2, 1, "memory.ceiling")
            assert engine.abort_all(error) == 1
            with pytest.raises(FootprintExceeded) as raised:
                await read(outputs)
            assert raised.value is error
        assert (await answer(engine, await request_of(engine, user("Go on")))).text
        await closed(engine)


async def test_an_id_that_is_used_again_gets_nothing_of_the_request_before(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        long, short = [
            replace(await request_of(engine, user(text), sampling=sampling), id="same")
            for text, sampling in (("Count", LONG), ("Hello", GREEDY))
        ]
        alone = await answer(engine, short)
        for _ in range(5):
            async with engine.generate(long) as outputs:
                await anext(outputs)
            assert await answer(engine, short) == alone
        await closed(engine)


async def test_memory_is_the_daemons_to_give(tmp_path, model):
    room = 0
    share = MemoryShare(lambda: room, lambda: room, lambda: "memory.soft")
    async with worker_pool(tmp_path) as workers:
        engine = EngineCore(
            EngineConfig("tiny", model, 2048, hold_timeout=60), workers, memory=share.stake("tiny", lambda: 10**9)
        )
        await engine.load()
        share.reserve("a load", 1)  # somebody else will give memory back
        waiting = asyncio.create_task(answer(engine, await request_of(engine, user("Hello"))))
        await until(lambda: any(status.waiting_for == "memory" for status in engine.requests()))
        room = 10**9
        share.reserve("a load", 0)
        assert (await waiting).text
        await until(lambda: share.spare() == room)
        await closed(engine)


async def test_what_never_fits_is_refused_before_it_crosses(tmp_path, model):
    share = MemoryShare(lambda: 10**9)
    async with worker_pool(tmp_path) as workers:
        engine = EngineCore(EngineConfig("tiny", model, 2048), workers, memory=share.stake("tiny", lambda: 1000))
        await engine.load()
        with pytest.raises(PrefillMemoryExceeded):
            engine.generate(await request_of(engine, user("Hello")))
        await closed(engine)


async def test_a_refusal_of_the_worker_arrives_whole(tmp_path, model):
    refused: list[Any] = []
    share = MemoryShare(lambda: 0, lambda: 0, lambda: "memory.soft")
    async with worker_pool(tmp_path) as workers:
        engine = EngineCore(
            EngineConfig("tiny", model, 2048, hold_timeout=0.2),
            workers,
            memory=share.stake("tiny", lambda: 10**9),
            on_refused=refused.append,
        )
        await engine.load()
        share.reserve("a load", 1)
        asked = await request_of(engine, user("Hello"))
        waiting = asyncio.create_task(answer(engine, asked))
        while not waiting.done():
            share.changed()  # as the guard does with each measurement
            await asyncio.wait([waiting], timeout=0.05)
        with pytest.raises(MemoryWaitTimeout, match="needs about") as raised:
            await waiting
        assert raised.value.estimated_bytes > 0
        assert refused == [raised.value]
        await closed(engine)


async def test_a_brake_holds_prompts_in_workers_too(tmp_path, model):
    share = MemoryShare(lambda: 10**9)
    async with worker_pool(tmp_path) as workers:
        engine = EngineCore(EngineConfig("tiny", model, 2048), workers, memory=share.stake("tiny"))
        await engine.load()
        async with engine.generate(await request_of(engine, user("Count"), sampling=LONG)) as outputs:
            await anext(outputs)
            share.brake_to(Brake(hold=True))
            waiting = asyncio.create_task(answer(engine, await request_of(engine, user("Hello"))))
            await until(lambda: engine.stats().waiting == 1)
            share.brake_to(OFF)
            assert (await waiting).text
        await closed(engine)


async def test_a_template_that_never_ends_is_stopped_with_whoever_gave_it_up(tmp_path):
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    folder = tmp_path / "looping"
    build_tiny_model(folder, template="{% if messages[0].content == 'loop' %}" + forever + "{% endif %}hello")
    threads = TokenizerThreads(patience=0.3)
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(folder, workers)
        await engine.load()
        process = psutil.Process(pid_of(engine))
        before = process.num_threads()
        with pytest.raises(InvalidRequest, match="did not end"):
            await threads.run("looping", lambda: engine.tokenizer.render_chat([user("loop")]))
        await until(lambda: process.num_threads() == before)
        assert await threads.run("looping", lambda: engine.tokenizer.render_chat([user("x")])) == "hello"
        await closed(engine)


async def test_an_unload_gives_all_memory_back(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        process = psutil.Process(pid_of(engine))
        assert process.memory_info().rss > engine.info.weight_bytes
        await closed(engine)
        assert not process.is_running()


async def test_free_buffers_are_given_back_on_request(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        await answer(engine, await request_of(engine, user("Hello " * 200)))
        await workers.reclaim()
        active, cached_bytes, _ = workers.counters
        assert active >= engine.info.weight_bytes
        assert cached_bytes == 0
        await closed(engine)
        assert workers.counters == (0, 0, 0)


async def test_steps_are_held_and_freed(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        async with engine.generate(await request_of(engine, user("Count"), sampling=LONG)) as outputs:
            await anext(outputs)
            assert await workers.hold_steps(10)
            made = engine.stats().completion_tokens
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await read(outputs)
            assert engine.stats().completion_tokens - made <= 1
            workers.free_steps()
            assert await read(outputs)
        await closed(engine)


async def test_the_log_of_a_worker_is_the_daemons_from_the_level_that_it_has(tmp_path, model):
    share = MemoryShare(lambda: 10**9, lambda: 0)
    async with worker_pool(tmp_path, log_level=lambda: logging.ERROR) as workers:
        engine = EngineCore(EngineConfig("tiny", model, 2048), workers, memory=share.stake("tiny"))
        await engine.load()
        with capture_logs() as quiet:
            await preempted(engine)
        assert not quiet
        workers.log_from(logging.INFO)
        with capture_logs() as lines:
            await preempted(engine)
        [line] = [line for line in lines if line["event"] == "engine.preempted"]
        assert (line["log_level"], line["model"]) == ("info", "tiny")
        await closed(engine)


async def preempted(engine: EngineCore) -> None:
    """Two answers for which there is no memory to grow together."""
    before = engine.stats().preempted
    answers = [
        asyncio.create_task(answer(engine, await request_of(engine, user(text), sampling=LONG))) for text in "ab"
    ]
    await until(lambda: engine.stats().preempted > before)
    for each in answers:
        each.cancel()
    await asyncio.wait(answers)


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def test_the_process_is_named_after_its_model_and_gets_no_signal_of_a_terminal(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        process = psutil.Process(pid_of(engine))
        assert process.cmdline()[0].startswith(f"mlxd: {model.name}")
        assert (os.getpgid(process.pid), os.getsid(process.pid)) == (process.pid, os.getsid(0))
        assert sys.platform != "linux" or oom_score(process.pid) > oom_score(os.getpid())
        await closed(engine)
