"""Servers to measure, each on a free port with the same model: mlxd, and those of mlx-lm and mlx-vlm."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MLXD = str(Path(sys.executable).parent / "mlxd")
START_TIMEOUT = 120.0


@dataclass(frozen=True)
class Server:
    """A running server: `model` is what its requests name."""

    name: str
    url: str
    model: str


@contextmanager
def mlxd(model: Path, folder: Path, config: str = "", *, name: str = "mlxd") -> Iterator[Server]:
    """`mlxd serve` with that one model, and its own defaults but for `config` (TOML); shown as `name`."""
    file = folder / "mlxd.toml"
    file.write_text(f'[[model]]\nname = "it"\npath = "{model}"\n{config}')
    command = [MLXD, "serve", "--config", str(file), "--port", "0", "--log-level", "error"]
    environ = {**os.environ, "MLXD_SERVER__STATE_DIR": str(folder / "state"), "MLXD_MODELS__HF_CACHE": "false"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("mlxd ready on "), line
        try:
            yield Server(name, line.split()[-1], "it")
        finally:
            process.terminate()


@contextmanager
def mlx_lm_server(model: Path) -> Iterator[Server]:
    """`mlx_lm.server` with its defaults."""
    with _module("mlx_lm", "server", "--model", str(model)) as url:
        yield Server("mlx_lm.server", url, "default_model")


@contextmanager
def mlx_vlm_server(model: Path) -> Iterator[Server]:
    """`mlx_vlm.server` with its defaults; it answers once the model is loaded."""
    with _module("mlx_vlm.server", "--host", "127.0.0.1", "--model", str(model)) as url:
        yield Server("mlx_vlm.server", url, str(model))


@contextmanager
def _module(*arguments: str) -> Iterator[str]:
    """The address of a Python module that serves, once it does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", *arguments, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    until = time.monotonic() + START_TIMEOUT
    while not _answers(url):
        if time.monotonic() > until:
            raise TimeoutError(url)
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except OSError:
        return False
    return True
