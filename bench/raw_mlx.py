"""Raw mlx-lm in a process of its own, the limit of what a daemon can reach."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORKER = str(Path(__file__).resolve().parent / "raw_worker.py")


class RawMlx:
    """The face of that process. Entered, it has imported mlx-lm; one piece of work at a time."""

    name = "raw"

    async def __aenter__(self) -> RawMlx:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            WORKER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=2**24,
        )
        await self._do(work="nothing")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def load(self, model: Path, *, fresh: bool = False) -> dict[str, Any]:
        """Keep that model; `seconds` to its first token, for one that is `fresh`."""
        return await self._do(work="load", model=str(model), fresh=fresh)

    async def single(self, model: Path, prompt: str, max_tokens: int) -> dict[str, Any]:
        """`stream_generate` of one prompt: `seconds`, `ttft`, and `tokens`."""
        return await self._do(work="single", model=str(model), prompts=[prompt], max_tokens=[max_tokens])

    async def batch(self, model: Path, prompts: Sequence[str], max_tokens: Sequence[int]) -> dict[str, Any]:
        """A BatchGenerator of them all: `seconds` and `tokens`."""
        return await self._do(work="batch", model=str(model), prompts=list(prompts), max_tokens=list(max_tokens))

    async def _do(self, **work: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(work).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"raw mlx-lm ended at {work.get('work')}")
        figures: dict[str, Any] = json.loads(line)
        return figures
