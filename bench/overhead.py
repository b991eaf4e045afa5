#!/usr/bin/env python3
"""What the engine costs over raw mlx-lm, as ratios of one run: A B A B on the same model and prompts.

usage: overhead.py [--model micro|tiny|smollm2] [--rounds 3] [--tokens 64]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from mlx_lm import load, stream_generate
from mlx_lm.generate import BatchGenerator
from smollm2 import smollm2_folder
from tiny_models import build_tiny_model, cached

from mlxd.engines.backend import mlx_backend
from mlxd.engines.core import EngineCore
from mlxd.engines.errors import EngineClosed
from mlxd.engines.lanes import LanePool
from mlxd.engines.types import EngineConfig, Request, SamplingParams

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the big bad wolf"


def model_path(name: str) -> Path:
    if name == "smollm2":
        return smollm2_folder()
    return cached(name, lambda out: build_tiny_model(out, size=name))


def prompts(tokenizer: Any, count: int) -> list[list[int]]:
    words = TEXT.split()
    texts = [" ".join(words[i:] + words[:i]) for i in range(count)]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def raw_single(model: Any, tokenizer: Any, prompt: list[int], tokens: int) -> float:
    """Tokens per second of mlx-lm's own generation, from the first token on."""
    responses = list(stream_generate(model, tokenizer, prompt, max_tokens=tokens))
    return float(responses[-1].generation_tps)


def raw_batch(model: Any, tokenizer: Any, batch_prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second of a raw BatchGenerator, prompts included, on the calling thread."""
    batch = BatchGenerator(model, stop_tokens=[[token] for token in tokenizer.eos_token_ids])
    started = time.perf_counter()
    open_rows = set(batch.insert(batch_prompts, max_tokens=[tokens] * len(batch_prompts)))
    made = 0
    while open_rows:
        responses = batch.next_generated()
        made += len(responses)
        open_rows -= {response.uid for response in responses if response.finish_reason is not None}
    return made / (time.perf_counter() - started)


async def engine_single(engine: EngineCore, prompt: list[int], tokens: int) -> float:
    """Tokens per second as the engine reports them, from the first token on."""
    request = Request(f"one-{time.perf_counter_ns()}", tuple(prompt), SamplingParams(max_tokens=tokens, temperature=0))
    async with engine.generate(request) as outputs:
        last = [output async for output in outputs][-1]
    assert last.timing.decode_tps is not None
    return last.timing.decode_tps


async def engine_batch(engine: EngineCore, batch_prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second of concurrent streams, prompts included, as their readers see them."""

    async def read(index: int, prompt: list[int]) -> int:
        sampling = SamplingParams(max_tokens=tokens, temperature=0)
        async with engine.generate(Request(f"b{index}-{time.perf_counter_ns()}", tuple(prompt), sampling)) as outputs:
            return [output async for output in outputs][-1].usage.completion_tokens

    started = time.perf_counter()
    made = await asyncio.gather(*[read(index, prompt) for index, prompt in enumerate(batch_prompts)])
    return sum(made) / (time.perf_counter() - started)


async def measure(path: Path, rounds: int, tokens: int) -> dict[str, dict[str, float]]:
    """Both sides in turn, on the same greedy work; the first round only warms up."""
    model, tokenizer = load(str(path))
    eight = prompts(tokenizer, 8)
    lanes = LanePool(mlx_backend)
    engine = EngineCore(EngineConfig(path.name, path, context_length=8192), lanes)
    await engine.load()
    rows: dict[str, list[tuple[float, float]]] = {"1 stream": [], "8 streams": []}
    for number in range(rounds + 1):
        single = raw_single(model, tokenizer, eight[0], tokens), await engine_single(engine, eight[0], tokens)
        batch = raw_batch(model, tokenizer, eight, tokens), await engine_batch(engine, eight, tokens)
        if number:
            rows["1 stream"].append(single)
            rows["8 streams"].append(batch)
    await engine.close(EngineClosed("done"), 30)
    await asyncio.to_thread(lanes.close, 10)
    return {name: summary(pairs) for name, pairs in rows.items()}


def summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Medians of the rounds; the ratio is the median of the rounds' ratios."""
    return {
        "raw_tps": round(statistics.median(raw for raw, _ in pairs), 1),
        "mlxd_tps": round(statistics.median(ours for _, ours in pairs), 1),
        "ratio": round(statistics.median(ours / raw for raw, ours in pairs), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=["micro", "tiny", "mid", "smollm2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = arguments.model or ["micro", "tiny", "smollm2"]
    results = {name: asyncio.run(measure(model_path(name), arguments.rounds, arguments.tokens)) for name in names}
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'model':10} {'work':10} {'raw tok/s':>10} {'mlxd tok/s':>11} {'ratio':>6}")
    for name, rows in results.items():
        for work, row in rows.items():
            print(f"{name:10} {work:10} {row['raw_tps']:10.1f} {row['mlxd_tps']:11.1f} {row['ratio']:6.3f}")


if __name__ == "__main__":
    main()
