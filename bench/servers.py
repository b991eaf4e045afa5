"""Servers to measure, each on a free port with the same model: mlxd, and its peers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from peers import python_of

MLXD = str(Path(sys.executable).parent / "mlxd")
START_TIMEOUT = 120.0


@dataclass(frozen=True)
class Server:
    """A running server: `model` is what its requests name."""

    name: str
    url: str
    model: str
    pid: int = 0

    def of(self, model: str) -> Server:
        """The same server, for requests that name another model."""
        return replace(self, model=model)


@contextmanager
def mlxd(model: Path, folder: Path, config: str = "", *, name: str = "mlxd") -> Iterator[Server]:
    """`mlxd serve` with that one model, and its own defaults but for `config` (TOML); shown as `name`."""
    file = folder / "mlxd.toml"
    file.write_text(f'[[model]]\nname = "it"\npath = "{model}"\n{config}')
    command = [MLXD, "serve", "--config", str(file), "--port", "0", "--log-level", "error"]
    environ = {**os.environ, "MLXD_SERVER__STATE_DIR": str(folder / "state"), "MLXD_MODELS__HF_CACHE": "false"}
    environ.pop("LD_PRELOAD", None)  # it finds its BLAS by itself, and an idle one has none
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("mlxd ready on "), line
        try:
            yield Server(name, line.split()[-1], "it", process.pid)
        finally:
            process.terminate()


@contextmanager
def mlx_lm_server(model: Path) -> Iterator[Server]:
    """`mlx_lm.server` with its defaults."""
    with _serving([sys.executable, "-m", "mlx_lm", "server", "--model", str(model)]) as (url, pid):
        yield Server("mlx_lm.server", url, "default_model", pid)


@contextmanager
def mlx_vlm_server(model: Path) -> Iterator[Server]:
    """`mlx_vlm.server` with its defaults; it answers once the model is loaded."""
    with _serving([sys.executable, "-m", "mlx_vlm.server", "--host", "127.0.0.1", "--model", str(model)]) as (url, pid):
        yield Server("mlx_vlm.server", url, str(model), pid)


@contextmanager
def vllm_mlx(model: Path) -> Iterator[Server]:
    """vllm-mlx from its own environment, with continuous batching. Raises PeerMissing."""
    python = python_of("vllm-mlx")
    command = [str(python.parent / "vllm-mlx"), "serve", str(model), "--host", "127.0.0.1", "--continuous-batching"]
    with _serving(command) as (url, pid):
        yield Server("vllm-mlx", url, str(model), pid)


@contextmanager
def mlx_openai_server(model: Path) -> Iterator[Server]:
    """mlx-openai-server from its own environment, with its defaults. Raises PeerMissing."""
    python = python_of("mlx-openai-server")
    command = [str(python.parent / "mlx-openai-server"), "launch", "--model-type", "lm", "--model-path", str(model)]
    with _serving([*command, "--host", "127.0.0.1"]) as (url, pid):
        yield Server("mlx-openai-server", url, str(model), pid)


@contextmanager
def _serving(command: list[str]) -> Iterator[tuple[str, int]]:
    """The address of what serves on a `--port`, once it does, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ
    ) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_TIMEOUT
    while not _answers(url):
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode}: {process.args}")
        if time.monotonic() > until:
            raise TimeoutError(url)
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except OSError:
        return False
    return True
