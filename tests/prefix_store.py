"""Prefix entries of real tiny models, stores for them, and the program that is killed while it stores some."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model

from mlxd.engines.backend import mlx_backend
from mlxd.engines.cache_layers import detach
from mlxd.engines.prefix_cache import PrefixEntry
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.prefix_folder import PrefixFolder
from mlxd.engines.token_arrays import token_array

PLENTY = 2**30
IDENTITY, OTHER = "0123456789abcdef" * 2, "f" * 32


@cache
def loaded(path: Path) -> Any:
    """The model in that folder, on this thread."""
    return load_model(path)[0]


def tokens_for(word: str, count: int) -> tuple[int, ...]:
    """Tokens that are the same for the same word, and go on the same way when there are more of them."""
    return tuple(np.random.default_rng(list(word.encode())).integers(3, 500, 4096)[:count].tolist())


def answer(model: Any, prompt: tuple[int, ...], layers: list[Any] | None = None, cached: int = 0):
    """Eight greedy tokens, and the cache after them as it is kept."""
    generator = BatchGenerator(model, stream=mx.default_stream(mx.default_device()))
    generator.insert([list(prompt[cached:])], max_tokens=[8], caches=[layers], all_tokens=[list(prompt[:cached])])
    tokens = []
    while True:
        for response in generator.next()[1]:
            tokens.append(response.token)
            if response.finish_reason is not None:
                return tokens, entry_of(response.prompt_cache, response.all_tokens)


def entry_of(layers: list[Any], tokens) -> PrefixEntry:
    return PrefixEntry(token_array(tokens), detach(layers), sum(layer.nbytes for layer in layers))


def entry_for(path: Path, word: str, count: int = 100) -> PrefixEntry:
    return answer(loaded(path), tokens_for(word, count))[1]


def contents(layers: list[Any]) -> list[tuple[str, Any]]:
    """Everything that the caches consist of, arrays as their shape, type and bytes."""
    flat = tree_flatten([(type(layer).__name__, layer.state) for layer in layers])
    return [(name, _content(leaf)) for name, leaf in flat]


def _content(leaf: Any) -> Any:
    if not isinstance(leaf, mx.array):
        return leaf
    # numpy has no bfloat16; the others need no operation of MLX, which a short-lived thread should not do
    raw = np.array(leaf.view(mx.uint16) if leaf.dtype == mx.bfloat16 else leaf)
    return leaf.shape, str(leaf.dtype), raw.tobytes()


@contextmanager
def folder_at(path: Path, max_bytes: int = PLENTY, **options: Any) -> Iterator[PrefixFolder]:
    folder = PrefixFolder(path, max_bytes, mlx_backend, **options)
    try:
        yield folder
    finally:
        assert folder.close(30)
        assert not [thread for thread in threading.enumerate() if thread.name == "prefix-disk"]


@contextmanager
def disk_at(path: Path, identity: str = IDENTITY, max_bytes: int = PLENTY, **options: Any) -> Iterator[PrefixDisk]:
    """An open store in a folder of its own."""
    with folder_at(path, **options) as folder, disk_in(folder, identity, max_bytes) as disk:
        yield disk


@contextmanager
def disk_in(folder: PrefixFolder, identity: str = IDENTITY, max_bytes: int = PLENTY) -> Iterator[PrefixDisk]:
    disk = PrefixDisk(folder, identity, max_bytes)
    disk.open()
    settle(folder)
    try:
        yield disk
    finally:
        assert disk.close(30)


def settle(folder: PrefixFolder) -> None:
    """Wait until the folder's thread has done what was queued before."""
    done = threading.Event()
    assert folder.submit(done.set)
    assert done.wait(30)


def store(disk: PrefixDisk, *entries: PrefixEntry) -> None:
    """Store entries one after the other, so that none is given up."""
    for entry in entries:
        disk.store(entry)
        settle(disk._folder)


def fetch(disk: PrefixDisk, key: str) -> PrefixEntry | None:
    answers: list[PrefixEntry | None] = []
    done = threading.Event()

    def take(entry: PrefixEntry | None) -> None:
        answers.append(entry)
        done.set()

    disk.fetch(key, take)
    assert done.wait(30)
    return answers[0]


def files_in(folder: Path, identity: str = IDENTITY) -> list[Path]:
    return sorted((folder / identity).iterdir()) if (folder / identity).exists() else []


def data_file(folder: Path) -> Path:
    return next(file for file in files_in(folder) if file.suffix == ".safetensors")


def child(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, Path(__file__).with_name("prefix_child.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run_child(*arguments: object) -> dict[str, int]:
    """Run the program to its end; its stats."""
    process = child(*arguments)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


def kill_when_stopped(process: subprocess.Popen[str]) -> None:
    with process:
        assert process.stdout.readline() == "stopped\n"
        process.kill()
    assert process.returncode == -9


def filled(cache, tokens: int = 24, dtype=mx.bfloat16, dim: int = 64):
    cache.update_and_fetch(*(mx.random.normal((1, 2, tokens, dim)).astype(dtype) for _ in range(2)))
    return cache


def room_for(count: int, entry: PrefixEntry) -> int:
    """A bound with room for so many entries like this one, and for what is set aside while one is written."""
    return count * (entry.nbytes + 2000) + 9000


def total(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class Blocked:
    """Holds the folder's thread until it is left."""

    def __init__(self, folder):
        self._folder, self._go = folder, threading.Event()

    def __enter__(self):
        began = threading.Event()
        self._folder.submit(lambda: (began.set(), self._go.wait(30)), urgent=True)
        assert began.wait(30)
        return self

    def __exit__(self, *_):
        self._go.set()
