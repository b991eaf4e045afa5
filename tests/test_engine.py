"""A real engine: batching, streaming, stops, aborts, teardown."""

import asyncio
import threading
from dataclasses import replace

import pytest
from engine_harness import (
    GREEDY,
    answer,
    at_rest,
    chat,
    collect,
    engine_on,
    lane_pool,
    until_idle,
    until_live,
    until_state,
)
from structlog.testing import capture_logs

from mlxd.engines.core import EngineCore, EngineState
from mlxd.engines.errors import (
    ContextLengthExceeded,
    EngineClosed,
    EngineDead,
    EngineQueueFull,
    FootprintExceeded,
    LoadError,
    LoadFailure,
    ModelOwnershipError,
    StepFailed,
)
from mlxd.engines.text_runner import TextRunner
from mlxd.engines.types import EngineConfig, FinishReason, Request, SamplingParams

PROMPTS = [f"question {number} " * (1 + 3 * number) for number in range(8)]


@pytest.fixture
async def lanes():
    async with lane_pool() as pool:
        yield pool


@pytest.fixture
async def engine(tiny_model, lanes):
    async with engine_on(tiny_model, lanes) as engine:
        yield engine


async def test_eight_greedy_requests_together_give_what_each_gives_alone(engine):
    alone = [await answer(engine, prompt) for prompt in PROMPTS]
    together = await asyncio.gather(*[answer(engine, prompt) for prompt in PROMPTS])
    assert together == alone
    assert len(set(alone)) == len(alone)


async def test_staggered_requests_give_what_each_gives_alone(engine):
    alone = [await answer(engine, prompt) for prompt in PROMPTS[:4]]
    requests = [chat(engine, prompt) for prompt in PROMPTS[:4]]
    async with engine.generate(requests[0]) as first:
        text = (await anext(first)).text  # the first decodes when the others come
        others = asyncio.gather(*[collect(engine, request) for request in requests[1:]])
        text += "".join([output.text async for output in first])
        rest = ["".join(output.text for output in outputs) for outputs in await others]
    assert [text, *rest] == alone


async def test_the_engine_gives_the_tokens_that_mlx_lm_gives(engine, tiny_model):
    from mlx_lm import load, stream_generate

    request = chat(engine, "the same question")
    ours = "".join(output.text for output in await collect(engine, request))

    def raw() -> str:
        model, tokenizer = load(str(tiny_model))
        pieces = stream_generate(model, tokenizer, list(request.prompt), max_tokens=GREEDY.max_tokens)
        return "".join(piece.text for piece in pieces)

    assert ours == await asyncio.to_thread(raw)


@pytest.mark.parametrize("chunk", [16, 40, 512])
async def test_the_size_of_prefill_chunks_does_not_change_the_answer(tiny_model, lanes, chunk):
    prompt = "a longer question " * 40
    async with engine_on(tiny_model, lanes, prefill_chunk=2048, max_stall=None) as engine:
        whole = await answer(engine, prompt)
    async with engine_on(tiny_model, lanes, prefill_chunk=chunk, max_stall=None) as engine:
        assert await answer(engine, prompt) == whole


async def test_a_prompt_that_prefills_in_small_steps_lets_others_decode_meanwhile(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, max_stall=0.02) as engine:
        running = chat(engine, "go on", replace(GREEDY, max_tokens=1500))
        async with engine.generate(running) as outputs:
            await anext(outputs)
            before = engine.stats().completion_tokens
            long = asyncio.create_task(collect(engine, chat(engine, "word " * 500, replace(GREEDY, max_tokens=1))))
            made = [output.usage.completion_tokens async for output in aiter_until(outputs, long)]
            await long
        assert made[-1] > before + 10


async def aiter_until(outputs, task):
    """Outputs for as long as the task runs."""
    async for output in outputs:
        yield output
        if task.done():
            return


async def test_two_engines_on_two_lanes_do_not_disturb_each_other(engine, other_tiny_model, lanes):
    async with engine_on(other_tiny_model, lanes) as other:
        alone = await answer(engine, "hello"), await answer(other, "hello")
        together = await asyncio.gather(answer(engine, "hello"), answer(other, "hello"))
    assert tuple(together) == alone
    assert alone[0] != alone[1]


async def test_engines_that_share_a_step_lock_take_turns_and_answer_the_same(tiny_model, other_tiny_model, lanes):
    class Turns:
        """A lock that counts how many steps are inside it."""

        def __init__(self) -> None:
            self.lock, self.inside, self.most, self.steps = threading.Lock(), 0, 0, 0

        def __enter__(self) -> None:
            self.lock.acquire()
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.steps += 1

        def __exit__(self, *_: object) -> None:
            self.inside -= 1
            self.lock.release()

    turns = Turns()
    async with (
        engine_on(tiny_model, lanes, step_lock=turns) as one,
        engine_on(other_tiny_model, lanes, step_lock=turns) as two,
    ):
        alone = await answer(one, "hello"), await answer(two, "hello")
        assert tuple(await asyncio.gather(answer(one, "hello"), answer(two, "hello"))) == alone
    assert turns.most == 1
    assert turns.steps >= 4 * GREEDY.max_tokens


async def test_the_last_output_has_reason_usage_and_timing(engine):
    request = chat(engine, "count")
    last = (await collect(engine, request))[-1]
    assert last.finish_reason is FinishReason.LENGTH
    assert last.usage.prompt_tokens == len(request.prompt)
    assert last.usage.completion_tokens == GREEDY.max_tokens
    assert last.timing.ttft_s > 0
    assert last.timing.decode_tps > 0


async def test_a_seed_gives_the_same_text_whoever_else_is_served(engine):
    seeded = SamplingParams(max_tokens=24, temperature=1.0, top_p=0.95, top_k=50, seed=7)
    alone = await answer(engine, "dice", seeded)
    others = [answer(engine, f"noise {i}", SamplingParams(max_tokens=30, temperature=1.0)) for i in range(3)]
    together = (await asyncio.gather(answer(engine, "dice", seeded), *others))[0]
    other_seed = await answer(engine, "dice", replace(seeded, seed=8))
    assert together == alone
    assert other_seed != alone


async def test_unseeded_sampling_differs_from_run_to_run(engine):
    hot = SamplingParams(max_tokens=24, temperature=1.5)
    assert len({await answer(engine, "dice", hot) for _ in range(3)}) > 1


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.000001},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1.0, "top_k": 1, "seed": 3},
        {"temperature": 1.0, "top_p": 0.000001, "seed": 3},
        {"temperature": 1.0, "min_p": 1.0, "seed": 3},
        {"temperature": 0.0, "top_k": 10**6},
    ],
)
async def test_sampling_that_leaves_one_choice_is_greedy(engine, changed):
    assert await answer(engine, "choose", replace(GREEDY, **changed)) == await answer(engine, "choose")


async def test_a_logit_bias_forces_and_forbids_tokens(engine):
    request = chat(engine, "bias")
    forced = replace(request, id="forced", sampling=replace(GREEDY, logit_bias={77: 100.0}))
    outputs = await collect(engine, forced)
    expected = engine.tokenizer.detokenizer()
    for _ in range(GREEDY.max_tokens):
        expected.add_token(77)
    expected.finalize()
    assert "".join(output.text for output in outputs) == expected.last_segment


@pytest.mark.parametrize("penalty", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
async def test_a_penalty_applies_to_its_own_row_only(engine, penalty):
    plain = replace(GREEDY, max_tokens=12, logit_bias=dict.fromkeys(range(77, 90), 100.0))
    punished = replace(plain, **{penalty: 1.8})
    alone = await answer(engine, "again", plain)
    together = await asyncio.gather(answer(engine, "again", plain), answer(engine, "again", punished))
    assert together[0] == alone
    assert len(set(together[1])) > len(set(together[0]))


async def test_presence_and_frequency_penalties_do_not_count_the_prompt(engine):
    request = chat(engine, "again")
    token = request.prompt[4]
    sampling = replace(GREEDY, max_tokens=1, logit_bias={token: 50.0})
    plain = await collect(engine, replace(request, id="plain", sampling=sampling))
    punished = await collect(
        engine, replace(request, id="punished", sampling=replace(sampling, presence_penalty=2.0, frequency_penalty=2.0))
    )
    assert plain[-1].text == punished[-1].text


async def test_a_stop_string_ends_the_request_and_is_never_shown(engine):
    whole = await answer(engine, "long story")
    stop = whole[9:13]
    outputs = await collect(engine, chat(engine, "long story", replace(GREEDY, stop=(stop,))))
    assert "".join(output.text for output in outputs) == whole[: whole.index(stop)]
    assert [output.stop for output in outputs][-1] == stop
    assert [output.stop for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].usage.completion_tokens < GREEDY.max_tokens
    await until_idle(engine)


async def test_text_that_only_began_like_a_stop_string_is_shown_at_the_end(engine):
    whole = await answer(engine, "long story")
    never = whole[-2:] + "\x00never"
    assert await answer(engine, "long story", replace(GREEDY, stop=(never,))) == whole


async def test_leaving_the_loop_frees_the_slot(engine):
    for _ in range(5):
        async with engine.generate(chat(engine, "leave", replace(GREEDY, max_tokens=1000))) as outputs:
            async for _ in outputs:
                break
    await until_idle(engine)
    assert engine.requests() == ()
    assert await answer(engine, "next")


async def test_a_reader_cancelled_before_the_first_token_frees_the_slot(engine):
    request = chat(engine, "word " * 600, replace(GREEDY, max_tokens=500))
    reader = asyncio.create_task(collect(engine, request))
    await until_live(engine, 1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until_idle(engine)


async def test_an_id_that_is_used_again_gets_nothing_of_the_request_before(engine):
    left = Request("same", (5, 6, 7), replace(GREEDY, max_tokens=1500, ignore_eos=True))
    alone = await collect(engine, Request("alone", (9, 8, 7, 6), GREEDY))
    async with engine.generate(left) as outputs:
        await anext(outputs)
        before = engine.stats().completion_tokens
        while engine.stats().completion_tokens == before:
            pass  # the event loop stands still, so these tokens are still on their way when the reader leaves
    again = await collect(engine, Request("same", (9, 8, 7, 6), GREEDY))
    assert "".join(output.text for output in again) == "".join(output.text for output in alone)
    assert again[-1].usage == alone[-1].usage


async def test_a_cancelled_request_keeps_what_it_generated(engine):
    request = chat(engine, "cancel me", replace(GREEDY, max_tokens=1500))
    async with engine.generate(request) as outputs:
        text = (await anext(outputs)).text
        assert engine.cancel(request.id)
        async for output in outputs:
            text += output.text
    assert output.cancelled
    assert output.finish_reason is FinishReason.STOP
    assert text
    assert output.usage.completion_tokens < 1500
    assert not engine.cancel(request.id)


async def test_abort_all_ends_every_request_with_the_error_and_the_engine_goes_on(engine):
    error = FootprintExceeded(11, 10, "memory.ceiling")
    requests = [chat(engine, f"q{i}", replace(GREEDY, max_tokens=1000)) for i in range(5)]
    readers = [asyncio.create_task(collect(engine, request)) for request in requests]
    await until_live(engine, 5)
    assert engine.abort_all(error) == 5
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert results == [error] * 5
    await until_idle(engine)
    assert await answer(engine, "after")


async def test_a_prompt_over_the_context_is_refused_before_the_engine(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, context_length=32) as engine:
        with pytest.raises(ContextLengthExceeded) as refused:
            engine.generate(chat(engine, "word " * 40, replace(GREEDY, max_tokens=None)))
        assert refused.value.context_length == 32
        with pytest.raises(ContextLengthExceeded):
            engine.generate(chat(engine, "hi", replace(GREEDY, max_tokens=32)))
        outputs = await collect(engine, chat(engine, "hi", replace(GREEDY, max_tokens=None)))
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert outputs[-1].usage.prompt_tokens + outputs[-1].usage.completion_tokens == 32


async def test_a_full_engine_queue_refuses(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, max_running=1, max_waiting=1) as engine:
        requests = [chat(engine, "q", replace(GREEDY, max_tokens=1000)) for _ in range(3)]
        async with engine.generate(requests[0]), engine.generate(requests[1]):
            with pytest.raises(EngineQueueFull):
                engine.generate(requests[2])


async def test_more_requests_than_slots_are_all_served(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, max_running=3) as engine:
        alone = [await answer(engine, prompt) for prompt in PROMPTS]
        assert await asyncio.gather(*[answer(engine, prompt) for prompt in PROMPTS]) == alone


async def test_closing_ends_running_requests_with_the_given_error(tiny_model, lanes):
    engine = EngineCore(EngineConfig("tiny", tiny_model, 2048), lanes)
    await engine.load()
    reader = asyncio.create_task(collect(engine, chat(engine, "q", replace(GREEDY, max_tokens=1500))))
    await until_live(engine, 1)
    error = EngineClosed("unloaded")
    assert await engine.close(error, 20)
    assert (await asyncio.gather(reader, return_exceptions=True))[0] is error
    assert await engine.close(error, 20)
    with pytest.raises(EngineClosed):
        engine.generate(chat_request_after_close())


def chat_request_after_close():
    from mlxd.engines.types import Request

    return Request("late", (1, 2, 3), GREEDY)


async def test_memory_comes_back_when_the_engine_closes(tiny_model, lanes):
    import mlx.core as mx

    async def cycle() -> int:
        async with engine_on(tiny_model, lanes) as engine:
            await answer(engine, "hello")
        return mx.get_active_memory()

    first = await cycle()
    assert [await cycle() for _ in range(5)] == [first] * 5


async def test_reclaiming_empties_mlx_buffer_cache_while_engines_go_on(engine, lanes):
    import mlx.core as mx

    await answer(engine, "fill the cache")
    mx.eval(mx.zeros((1024, 1024)))
    assert mx.get_cache_memory() > 0
    running = asyncio.create_task(answer(engine, "go on"))
    await lanes.reclaim()
    assert await running == await answer(engine, "go on")
    await at_rest(engine)
    await lanes.reclaim()
    assert mx.get_cache_memory() == 0


async def test_memory_is_given_back_though_work_that_was_queued_fails(engine, lanes, monkeypatch):
    import mlx.core as mx

    def fails() -> None:
        raise RuntimeError("[ring] connection to a peer was lost")

    await answer(engine, "fill the cache")
    await at_rest(engine)
    mx.eval(mx.zeros((1024, 1024)))
    assert mx.get_cache_memory() > 0
    with monkeypatch.context() as patched, capture_logs() as logged:
        patched.setattr(mx, "synchronize", fails)
        await lanes.reclaim()
    assert mx.get_cache_memory() == 0
    assert "[ring] connection to a peer was lost" in {one.get("reason") for one in logged}
    assert await answer(engine, "go on")


async def test_reclaiming_before_a_first_load_imports_nothing(lanes):
    await lanes.reclaim()
    assert not any(lane.is_open for lane in lanes._free)


async def test_one_lane_serves_one_engine_after_another(tiny_model, other_tiny_model, lanes):
    names = []
    for path in (tiny_model, other_tiny_model, tiny_model):
        async with engine_on(path, lanes) as engine:
            names.append(engine._run._lane.name)
            await answer(engine, "hello")
    assert len(set(names)) == 1


async def test_a_second_load_of_one_engine_is_refused(engine):
    with pytest.raises(ModelOwnershipError):
        await engine.load()


async def test_a_load_that_is_cancelled_behind_its_last_piece_leaves_nothing_loaded(tiny_model, lanes):
    engine = EngineCore(EngineConfig("m", tiny_model, 2048), lanes)

    def cancel_at_the_end(progress):
        if progress.bytes_done == progress.bytes_total:
            engine.cancel_load()

    with pytest.raises(LoadError) as failed:
        await engine.load(cancel_at_the_end)
    assert failed.value.reason is LoadFailure.CANCELLED
    with pytest.raises(EngineClosed):
        _ = engine.info
    assert await engine.close(EngineClosed(""), 5)
    async with engine_on(tiny_model, lanes) as another:
        assert await answer(another, "the lane is free")


@pytest.mark.parametrize("spoil", ["weights", "config", "type", "tokenizer", "header", "truncated", "gone"])
async def test_a_folder_that_cannot_be_loaded_says_why_and_gives_the_lane_back(spoil, models_dir, tiny_model, lanes):
    folder = models_dir({"m": tiny_model}) / "m"
    reason, word = _spoil(folder, spoil)
    engine = EngineCore(EngineConfig("m", folder, 2048), lanes)
    with pytest.raises(LoadError) as failed:
        await engine.load()
    assert failed.value.reason is reason
    assert word in str(failed.value)
    assert await engine.close(EngineClosed(""), 5)
    async with engine_on(tiny_model, lanes) as healthy:
        assert await answer(healthy, "still here")


def _spoil(folder, how):
    import json
    import shutil

    weights, config = folder / "model.safetensors", folder / "config.json"
    match how:
        case "weights":
            weights.unlink()
            return LoadFailure.BAD_FILES, "safetensors"
        case "config":
            config.write_text("{not json")
            return LoadFailure.BAD_FILES, "config.json"
        case "type":
            config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "quantum9"}))
            return LoadFailure.UNSUPPORTED, "quantum9"
        case "tokenizer":
            (folder / "tokenizer.json").write_text("[]")
            return LoadFailure.BAD_FILES, "tokenizer"
        case "header":
            weights.write_bytes(b"\xff" * 64)
            return LoadFailure.BAD_FILES, "m"
        case "truncated":
            weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
            return LoadFailure.BAD_FILES, "m"
        case "gone":
            shutil.rmtree(folder)
            return LoadFailure.NOT_FOUND, str(folder)
    raise AssertionError(how)


async def test_rows_of_very_unequal_length_do_not_pad_each_other(tiny_model, lanes):
    per_token = 4096
    options = {"context_length": 8192, "prefill_chunk": 512, "kv_bytes_per_token": per_token}
    async with engine_on(tiny_model, lanes, **options) as engine:
        long = Request("long", tuple(range(3, 1503)) * 3, replace(GREEDY, max_tokens=60))
        shorts = [chat(engine, f"short {number}", replace(GREEDY, max_tokens=60)) for number in range(6)]
        alone = ["".join(o.text for o in await collect(engine, replace(one, id=f"{one.id}x"))) for one in shorts]
        most = 0

        async def watch(request):
            nonlocal most
            text = ""
            async with engine.generate(request) as outputs:
                async for output in outputs:
                    text += output.text
                    most = max(most, engine.stats().kv_bytes)
            return text

        texts = await asyncio.gather(*[watch(request) for request in (long, *shorts)])
    assert texts[1:] == alone
    longest = 4500 + 60 + 256
    assert most < per_token * (longest + 6 * 512) < per_token * 7 * longest / 3


async def test_a_short_prompt_is_answered_before_a_long_one_that_came_first(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, context_length=8192, max_stall=0.02) as engine:
        order = []

        async def ask(request):
            async with engine.generate(request) as outputs:
                await anext(outputs)
                order.append(request.id)

        longs = [Request(f"long{n}", tuple(range(3 + n, 1003 + n)) * 3, GREEDY) for n in range(3)]
        tasks = [asyncio.create_task(ask(request)) for request in longs]
        await until_live(engine, 3)
        tasks.append(asyncio.create_task(ask(replace(chat(engine, "hi"), id="short"))))
        await asyncio.gather(*tasks)
    assert order == ["short", "long0", "long1", "long2"]


@pytest.mark.parametrize("moment", ["waiting", "prefilling", "decoding"])
@pytest.mark.parametrize("how", ["leave", "cancel"])
async def test_what_is_given_up_is_free_at_once_and_the_time_is_told(tiny_model, lanes, moment, how):
    freed = []
    options = {"context_length": 8192, "prefill_chunk": 64, "max_running": 1}
    async with engine_on(tiny_model, lanes, on_freed=freed.append, **options) as engine:
        blocker = None
        if moment == "waiting":
            blocker = asyncio.create_task(collect(engine, chat(engine, "busy", replace(GREEDY, max_tokens=300))))
            await until_live(engine, 1)
        prompt = tuple(range(3, 1503)) * 3 if moment == "prefilling" else (5, 6, 7)
        request = Request("it", prompt, replace(GREEDY, max_tokens=2000))
        async with engine.generate(request) as outputs:
            if moment == "decoding":
                await anext(outputs)
            else:
                await until_state(engine, "it", moment)
            if how == "cancel":
                assert engine.cancel("it")
                async for output in outputs:
                    last = output
                assert last.cancelled
        async with asyncio.timeout(10):
            while not freed:
                await asyncio.sleep(0.002)
        assert len(freed) == 1
        assert 0 <= freed[0] < 2
        if blocker is not None:
            assert (await blocker)[-1].finish_reason is FinishReason.LENGTH
        else:
            await until_idle(engine)
            assert engine.stats().kv_bytes == 0


async def test_an_engine_whose_model_cannot_be_dropped_cleanly_still_ends(tiny_model, lanes, monkeypatch):
    def refuse(self):
        raise RuntimeError("metal says no")

    monkeypatch.setattr(TextRunner, "close", refuse)
    async with engine_on(tiny_model, lanes) as engine:
        assert await answer(engine, "hello")
    monkeypatch.undo()
    async with engine_on(tiny_model, lanes) as engine:
        assert await answer(engine, "hello")


async def test_an_engine_that_gave_up_is_closed_like_any_other(tiny_model, lanes, monkeypatch):
    def fail(self):
        raise RuntimeError("metal says no")

    died = []
    async with engine_on(tiny_model, lanes, on_dead=died.append) as engine:
        monkeypatch.setattr(TextRunner, "step", fail)
        for _ in range(3):
            with pytest.raises((StepFailed, EngineDead)):
                await collect(engine, chat(engine, "hello"))
        monkeypatch.undo()
        assert len(died) == 1
        with pytest.raises(EngineDead):
            engine.generate(chat(engine, "hello"))
    assert engine.state is EngineState.CLOSED
