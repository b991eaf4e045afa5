"""A real daemon as a child process on a free port, and short ways to talk to it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

MLXD = str(Path(sys.executable).parent / "mlxd")
START_TIMEOUT = 60.0
EXIT_TIMEOUT = 60.0


@dataclass
class Daemon:
    """A running `mlxd serve`. `log` is its standard error."""

    process: subprocess.Popen[str]
    log: Path
    folder: Path
    url: str = ""

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT)
        line = self.process.stdout.readline() if readable else ""
        assert line.startswith("mlxd ready on http://"), f"{line!r}\n{self.log.read_text()}"
        self.url = line.split()[-1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait for it to end by itself."""
        return self.process.wait(EXIT_TIMEOUT)

    def events(self) -> list[dict[str, Any]]:
        """The log so far; every line is one JSON object."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def daemon(
    folder: Path,
    models: Path,
    config: str = "",
    *,
    environ: dict[str, str] | None = None,
    exit_code: int | None = 0,
    program: Sequence[str] = (MLXD,),
    port: int = 0,
) -> Iterator[Daemon]:
    """Serve `models` with `config` (TOML) until the block ends; then its exit code is checked."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "mlxd.toml"
    file.write_text(config)
    flags = ["--config", str(file), "--port", str(port), "--models-dir", str(models), "--log-format", "json"]
    command = [*program, "serve", *flags]
    variables = {
        **os.environ,
        "MLXD_SERVER__STATE_DIR": str(folder / "state"),
        "MLXD_MODELS__HF_CACHE": "false",
        "HF_HUB_OFFLINE": "1",  # whatever a test asks for, nothing comes from the internet
        "MLXD_ENGINE__BLAS": "off",  # the test run has preloaded one already, where there is one
        **(environ or {}),
    }
    log = folder / "daemon.log"
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables)
    running = Daemon(process, log, folder)
    try:
        running.wait_ready()
        yield running
        code = running.stop()
        assert exit_code is None or code == exit_code, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert "Traceback" not in log.read_text()


class Api:
    """JSON over one client session."""

    def __init__(self, url: str) -> None:
        self._session = aiohttp.ClientSession(url)

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and decoded answer."""
        async with self._session.request(method, path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> Any:
        status, answer = await self.call("GET", path)
        assert status == 200, answer
        return answer

    async def chat(self, model: str, text: str = "hello", **options: Any) -> tuple[int, Any]:
        """A greedy chat, not streamed."""
        return await self.call("POST", "/v1/chat/completions", chat_body(model, text, **options))

    async def text(self, model: str, text: str = "hello", **options: Any) -> str:
        status, answer = await self.chat(model, text, **options)
        assert status == 200, answer
        return answer["choices"][0]["message"]["content"]

    def stream(self, model: str, text: str = "hello", **options: Any) -> Any:
        """The response of a streamed chat, to be entered."""
        return self._session.post("/v1/chat/completions", json=chat_body(model, text, stream=True, **options))

    def post(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        """The response of a POST, to be entered."""
        return self._session.post(path, json=body, headers=headers)

    def get_stream(self, path: str) -> Any:
        """The response of a GET that does not end by itself, to be entered."""
        return self._session.get(path, timeout=aiohttp.ClientTimeout(total=None))

    async def states(self) -> dict[str, str]:
        return {model["id"]: model["state"] for model in (await self.get("/admin/models"))["data"]}

    async def until(self, path: str, holds: Any, within: float = 20.0) -> Any:
        """Read until something holds: what is awaited is the daemon's own word for it."""
        end = time.monotonic() + within
        while not holds(answer := await self.get(path)):
            assert time.monotonic() < end, answer
        return answer


def chat_body(model: str, text: str, **options: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"model": model, "messages": [message], "temperature": 0, "max_tokens": 16, **options}


async def sse(response: aiohttp.ClientResponse) -> list[Any]:
    """The events of a stream: decoded JSON, "[DONE]", and comments as they are."""
    events: list[Any] = []
    async for line in response.content:
        text = line.decode().strip()
        if text.startswith("data: {"):
            events.append(json.loads(text.removeprefix("data: ")))
        elif text:
            events.append(text.removeprefix("data: "))
    return events


def text_of(events: list[Any]) -> str:
    """The streamed answer, put together."""
    deltas = [choice["delta"] for event in events if isinstance(event, dict) for choice in event.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)
