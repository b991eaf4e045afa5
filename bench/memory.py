#!/usr/bin/env python3
"""Estimated against measured memory of prompts, for architectures whose caches differ.

usage: memory.py [--write docs/memory.md] [--tokens 600] [--only NAME ...]

Each model answers four prompts alone, of a third and of twice as many tokens, as it would in its first minute. Then
prompts of `--tokens` are priced and processed, one and eight at a time. `kv` are the bytes of their caches once all of
them decode, `peak` what was taken at the height of it, beside the weights. A ratio is the estimate over what was
measured.
`--write` replaces the table in that file.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import mlx.core as mx
from memory_kinds import KINDS, Kind, memory_kind
from mlx_lm.models.cache import QuantizedKVCache
from mlx_lm.utils import load_model

from mlxd.engines.backend import ModelRunner, NewRow
from mlxd.engines.cache_sizes import cost_of
from mlxd.engines.crowd import Crowd
from mlxd.engines.image_threads import ImageThreads
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.mlx_backend import MlxBackend
from mlxd.engines.prompt_price import BatchNeed, PromptPrice, RowNeed
from mlxd.engines.transients import LEAST_CHUNK
from mlxd.engines.types import EngineConfig, Request, SamplingParams
from mlxd.memory.estimates import inspect_folder

CHUNK = 128
LEFT = 8
BATCHES = (1, 8)
BEGIN, END = "<!-- memory table -->", "<!-- end of memory table -->"


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of one architecture and batch."""

    name: str
    batch: int
    kv: tuple[int, int]
    peak: tuple[int, int]

    def cells(self) -> list[str]:
        """As a line of the table: MiB, and ratios."""
        cells = [self.name, str(self.batch)]
        for estimated, measured in (self.kv, self.peak):
            cells += [f"{estimated / 2**20:.2f}", f"{measured / 2**20:.2f}", f"{ratio(estimated, measured):.3f}"]
        return cells


def first_prompts(tokens: int) -> list[int]:
    """Lengths of the prompts that each model answers first. Each twice: one measurement may be a low one."""
    return [tokens // 3, 2 * tokens] * 2


def ratio(estimated: int, measured: int) -> float:
    """1 for two that are nothing."""
    return estimated / measured if measured else float(not estimated) or 1.0


@contextmanager
def loaded(kind: Kind, **options: Any) -> Iterator[ModelRunner]:
    """The model on this thread, as a lane would have it, with chunks of one size; `options` are of its EngineConfig."""
    folder = memory_kind(kind)
    estimate = inspect_folder(folder)
    config = EngineConfig(
        kind.name,
        folder,
        8192,
        prefill_chunk=CHUNK,
        max_stall=None,
        attention_heads=estimate.attention_heads,
        itemsize=estimate.itemsize,
        **options,
    )
    backend, crowd = MlxBackend(), Crowd()
    watch = LoadWatch(lambda _: None, lambda: False, crowd, None, ImageThreads(), lambda _: None)
    with backend.lane_scope(), crowd.entered():
        runner = backend.load(config, watch)
        yield runner
        runner.close()
        del runner
        backend.reclaim()


def request(name: str, length: int) -> Request:
    """A prompt of so many tokens, whose answer no end token cuts short."""
    sampling = SamplingParams(max_tokens=LEFT, ignore_eos=True)
    return Request(name, tuple(3 + number * 7 % 400 for number in range(length)), sampling)


def process(runner: ModelRunner, batch: int, length: int) -> tuple[int, int]:
    """Bytes of caches once all rows decode, and at the height of it all."""
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    peak = 0
    uids = []
    for number in range(batch):
        asked = request(str(number), length)
        uids.append(runner.insert(NewRow(asked, asked.prompt, LEFT, CHUNK)).uid)
    waiting = set(uids)
    while waiting:
        peak = max(peak, stepped(runner, waiting) - before)
    kv = runner.kv_bytes
    runner.remove(uids, keep=False)
    runner.settle()
    return kv, peak


def stepped(runner: ModelRunner, waiting: set[int]) -> int:
    """Run a step; the bytes at its height. Rows that decode are not waited for any more."""
    mx.synchronize()
    height = mx.get_active_memory()
    mx.reset_peak_memory()
    for event in runner.step().tokens:
        waiting.discard(event.uid)
    runner.keep_finished()
    # the meter inside a step resets the counter too, at its beginning
    return max(height, mx.get_peak_memory())


def measure(kind: Kind, tokens: int) -> Iterator[Row]:
    """Both batches of one architecture."""
    with loaded(kind) as runner:
        for length in first_prompts(tokens):
            process(runner, 1, length)
        for batch in BATCHES:
            need = BatchNeed(tuple(RowNeed(tokens, LEFT) for _ in range(batch)))
            estimated = runner.price.kv(need, CHUNK), runner.price.batches([need], CHUNK)
            kv, peak = process(runner, batch, tokens)
            yield Row(kind.name, batch, (estimated[0], kv), (estimated[1], peak))


def measure_quantized(tokens: int) -> Iterator[Row]:
    """Caches of 8 bits, as mlx-lm makes them. It cannot batch them, so each sequence has its own."""
    model, _ = load_model(memory_kind(KINDS[0]))
    price = PromptPrice(cost_of(taken(model, LEAST_CHUNK)[0]))
    for length in first_prompts(tokens):
        taken(model, length, steps := [])
        for step in steps:
            price = replace(price, transients=price.transients.observed(*step))
    for batch in BATCHES:
        needs = [BatchNeed((RowNeed(tokens, 0),))] * batch
        estimated = sum(price.kv(need, CHUNK) for need in needs), price.batches(needs, CHUNK)
        held, peak = [], 0
        mx.clear_cache()
        before = mx.get_active_memory()
        for _ in range(batch):
            layers, height = taken(model, tokens)
            held.append(layers)
            peak = max(peak, height - before)
        kv = sum(layer.nbytes for layers in held for layer in layers)
        yield Row("quantised cache, 8 bits (llama)", batch, (estimated[0], kv), (estimated[1], peak))


def taken(model: Any, tokens: int, steps: list[tuple[int, int, int, int]] | None = None) -> tuple[list[Any], int]:
    """Quantised caches of so many tokens, and the active bytes at their height; `steps` gets what each chunk took."""
    layers = [QuantizedKVCache() for _ in model.layers]
    prompt = mx.array([[3 + number * 7 % 400 for number in range(tokens)]])
    height = 0
    for start in range(0, tokens, CHUNK):
        chunk = prompt[:, start : start + CHUNK]
        held, active = sum(layer.nbytes for layer in layers if layer.keys is not None), mx.get_active_memory()
        mx.reset_peak_memory()
        model(chunk, cache=layers)
        mx.eval([[layer.keys, layer.values] for layer in layers])
        height = max(height, mx.get_peak_memory())
        grown = sum(layer.nbytes for layer in layers) - held
        if steps is not None:
            steps.append((1, chunk.shape[1], start + chunk.shape[1], mx.get_peak_memory() - active - grown))
        mx.clear_cache()
    return layers, height


def table(rows: list[Row]) -> str:
    """In Markdown."""
    heads = ["architecture", "batch", "kv est.", "kv", "ratio", "peak est.", "peak", "ratio"]
    lines = [heads, ["---"] * len(heads), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(file: Path, text: str) -> None:
    """Put the table between its marks."""
    page = file.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    file.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page, count=1))


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--only", nargs="*", default=[])
    options: Any = parser.parse_args()
    kinds = [kind for kind in KINDS if not options.only or kind.name in options.only]
    # first: where a lane was, its thread computes no more
    quantized = [] if options.only else list(measure_quantized(options.tokens))
    rows = [row for kind in kinds for row in measure(kind, options.tokens)] + quantized
    text = table(rows)
    print(text)
    if options.write:
        write(options.write, text)


if __name__ == "__main__":
    main()
