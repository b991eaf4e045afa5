"""Fixtures shared by all tests. Models are built once into the ignored `.cache/` and are not to be changed."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import hypothesis
import pytest
from cli_process import mlxd
from clients_daemon import Serving, serving
from fake_daemon import FakeDaemon, running
from minilm import minilm_folder
from page_browser import chromium
from playwright.sync_api import Browser
from smollm2 import smollm2_folder
from tiny_models import build_tiny_model, cached, place_models
from virtual_time import VirtualLoop
from wheels import DownloadFailed

# how long an example takes says how busy the machine is
hypothesis.settings.register_profile("mlxd", deadline=None)
hypothesis.settings.load_profile("mlxd")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of a test: with the mark `virtual_time` one whose clock jumps."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


def pytest_configure() -> None:
    """Hear Ctrl-C, and children with us: what a script runs in the background was started with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from what was imported: each unload of a model has it look through everything else."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """A random model of 11 MB that never ends on its own."""
    return cached("tiny", build_tiny_model)


@pytest.fixture(scope="session")
def other_tiny_model() -> Path:
    """Like `tiny_model`, with other weights and so another text for the same prompt."""
    return cached("other", partial(build_tiny_model, seed=1))


@pytest.fixture(scope="session")
def micro_model() -> Path:
    """The fastest random model."""
    return cached("micro", partial(build_tiny_model, size="micro"))


@pytest.fixture
def models_dir(tmp_path: Path) -> Callable[[Mapping[str, Path]], Path]:
    """Makes a models folder with private copies: `models_dir({"alpha": tiny_model, "org/beta": micro_model})`."""
    return partial(place_models, tmp_path / "models")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in float32: a real model with a real tokenizer."""
    try:
        return smollm2_folder()
    except DownloadFailed as error:
        pytest.skip(f"SmolLM2 cannot be downloaded: {error}")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2: a real embedding model with a real tokenizer."""
    try:
        return minilm_folder()
    except DownloadFailed as error:
        pytest.skip(f"MiniLM cannot be downloaded: {error}")


@pytest.fixture(scope="session")
def clients_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One real daemon for the clients that people use; what a test sets in it, it sets back."""
    with serving(tmp_path_factory.mktemp("clients")) as served:
        yield served


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    """A daemon for the command line that answers what a test says."""
    with running(FakeDaemon()) as fake:
        yield fake


@pytest.fixture
def cli(daemon: FakeDaemon, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs the real command line against it: `cli("why", "qwen")`."""
    return partial(mlxd, home=tmp_path, MLXD_URL=daemon.url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    with chromium() as started:
        yield started
