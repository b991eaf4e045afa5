"""Threads for templates and tokenisers: what does not end is given up, and whoever finds none free may come again."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from mlxd.daemon.tokenizer_threads import TokenizerThreads
from mlxd.engines.errors import InvalidRequest, TokenizersBusy


async def test_work_runs_on_a_thread_and_its_errors_come_back():
    threads = TokenizerThreads()
    assert await threads.run("m", lambda: 6 * 7) == 42
    with pytest.raises(KeyError):
        await threads.run("m", lambda: {}["x"])


async def test_work_that_does_not_end_is_the_prompts_fault_and_its_place_comes_back():
    threads = TokenizerThreads(threads=1, per_model=1, patience=0.05)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    try:
        with pytest.raises(InvalidRequest, match="did not end"):
            await threads.run("m", spin)
        assert await TokenizerThreads.run(threads, "other", lambda: 1) == 1
    finally:
        stop.set()


async def test_whoever_finds_no_thread_is_told_to_come_again_and_not_that_its_prompt_is_wrong():
    threads = TokenizerThreads(threads=4, per_model=1, patience=0.3)
    may_end, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        may_end.wait(10)

    holder = asyncio.create_task(threads.run("m", hold))
    await asyncio.to_thread(begun.wait, 10)
    waiter = asyncio.create_task(threads.run("m", lambda: 1))
    other = await threads.run("other", lambda: 2)
    assert other == 2
    with pytest.raises((TokenizersBusy, InvalidRequest)) as refused:
        await waiter
    may_end.set()
    await asyncio.gather(holder, return_exceptions=True)
    assert isinstance(refused.value, TokenizersBusy)


class Prompt:
    """Something that is worth being gone."""


class BadPrompt(Exception):
    def __init__(self, met: Prompt) -> None:
        super().__init__()
        self.met = met


@pytest.fixture
def by_count_alone() -> Iterator[None]:
    """What is in a circle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("fails", [True, False])
async def test_what_came_of_the_work_is_gone_with_whoever_has_it(by_count_alone, fails, stays):
    threads, may_end, made = TokenizerThreads(), threading.Event(), []

    def work() -> Prompt:
        prompt = Prompt()
        made.append(weakref.ref(prompt))
        may_end.wait(10)
        if fails:
            raise BadPrompt(prompt)
        return prompt

    async def ask() -> str:
        try:
            return type(await threads.run("m", work)).__name__
        except BadPrompt:
            return "failed"

    asked = asyncio.create_task(ask())
    async with asyncio.timeout(10):
        while not made:
            await asyncio.sleep(0)
        if not stays:
            asked.cancel()
            await asyncio.wait([asked])
        may_end.set()
        await asyncio.wait([asked])
        assert asked.cancelled() if not stays else asked.result() == ("failed" if fails else "Prompt")
        while made[0]() is not None:
            await asyncio.sleep(0)
