#!/usr/bin/env python3
"""What images cost, and what others feel of them: mlxd, mlx_vlm.server, and mlx-vlm itself.

usage: vision.py [--runs 3] [--side 448] [--images 4]

pace       the pauses of a stream of a text model, quiet and while questions about new images are answered one after
           the other by a vision model beside it, and what GET /health takes meanwhile (mlxd alone)
own        the same for a text stream of the vision model itself
batch      such questions one after the other, and all at once; raw mlx-vlm one after the other
again      time to first token of a question about an image: new, another question about it, the image in another
           place of the prompt, and a further turn of its chat
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import aiohttp
from PIL import Image
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from mlx_vlm import apply_chat_template, generate, load
from servers import Server, mlx_vlm_server, mlxd
from streams import Client, Figures, Stream, medians, show
from tiny_models import build_tiny_model, cached
from tiny_vision import png, tiny_vision_model

QUESTION = "What is here?"
# Large enough that an image of 448 pixels keeps a core busy for a good part of a second.
ENCODER = {"depth": 8, "embed_dim": 256, "num_heads": 8}
ANSWER = 16
# A stream is made of answers of so many tokens, since long ones get slower by themselves. As many are its quiet pace,
# before the images and after them.
STREAMED = 300
HEALTH_EVERY = 0.01


def vision_folder(folder: Path, side: int) -> Path:
    """A vision model that sees images of up to `side` x `side` pixels as they are."""
    out = copytree(tiny_vision_model("qwen2_vl", vision_config=ENCODER), folder / "seer")
    file = out / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_pixels": side * side}))
    return out


def steady(model: Path) -> dict[str, float]:
    """Biases by which no token is part of a character or nothing that shows: each makes a piece of the stream."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = {str(token): tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())}
    return {token: -100 for token, text in texts.items() if "\ufffd" in text or not text.strip()}


class Images:
    """Images that no one has seen before, `side` pixels wide and high."""

    def __init__(self, side: int) -> None:
        self._size = side, side

    def file(self) -> bytes:
        return png(f"{time.time_ns()}", self._size)

    def part(self) -> dict[str, Any]:
        """One in a message."""
        url = f"data:image/png;base64,{base64.b64encode(self.file()).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}

    def requests(self, client: Client, count: int) -> list[bytes]:
        """Questions, each about one."""
        chats = [[user(self.part(), text(QUESTION))] for _ in range(count)]
        return [client.request(chat, ANSWER, stream=False) for chat in chats]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


class Health:
    """Asks GET /health every 10 ms in the background, and notes when it asked and how many seconds it took."""

    def __init__(self, client: Client) -> None:
        self._taken: list[tuple[float, float]] = []
        self._task = asyncio.create_task(self._ask(client))

    async def _ask(self, client: Client) -> None:
        while True:
            asked = time.perf_counter()
            await client.call("GET", "/health")
            took = time.perf_counter() - asked
            self._taken.append((asked, took))
            await asyncio.sleep(HEALTH_EVERY - took)

    async def __aenter__(self) -> Health:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    def seconds(self, start: float, end: float) -> list[float]:
        """What those took that were under way in that time."""
        return [took for asked, took in self._taken if asked + took > start and asked < end]


async def pace(reader: Client, seer: Client, images: Images, count: int) -> Figures:
    """A stream of answers of `reader` beside questions to `seer`."""
    requests = images.requests(seer, count)
    answers = (reader.counting(f"pace {number} {time.time_ns()}", STREAMED) for number in itertools.count())
    async with Stream(reader, answers) as stream, Health(seer) as health:
        begun = time.perf_counter()
        await stream.more(STREAMED)
        started = time.perf_counter()
        for request in requests:
            await seer.answer(request)
        ended = time.perf_counter()
        await stream.more(STREAMED)
        quiet = statistics.median(stream.gaps(begun, started) + stream.gaps(ended, stream.moments[-1]))
        gaps, healthy = stream.gaps(started, ended), health.seconds(started, ended)
    return {
        "quiet_gap_ms": quiet * 1e3,
        "gap_ms": statistics.median(gaps) * 1e3,
        "ratio": statistics.median(gaps) / quiet,
        "longest_gap_ms": max(gaps) * 1e3,
        "health_ms": statistics.median(healthy) * 1e3,
        "p99_health_ms": statistics.quantiles(healthy, n=100)[-1] * 1e3,
        "longest_health_ms": max(healthy) * 1e3,
        "images_s": ended - started,
    }


class Raw:
    """mlx-vlm's own `generate` in this process."""

    def __init__(self, path: Path) -> None:
        self._model, self._processor = load(str(path))
        self._prompt = apply_chat_template(self._processor, self._model.config, QUESTION, num_images=1)

    async def one_by_one(self, images: Images, count: int) -> Figures:
        """Questions about that many new images. The event loop stands still meanwhile: nobody else works."""
        files = [images.file() for _ in range(count)]
        started = time.perf_counter()
        for file in files:
            image = Image.open(io.BytesIO(file))
            generate(self._model, self._processor, self._prompt, image=[image], max_tokens=ANSWER, temperature=0.0)
        return {"one_by_one_s": time.perf_counter() - started}


async def batch(client: Client, images: Images, count: int) -> Figures:
    """Questions about that many new images in each way."""
    one_by_one = sum([await client.answer(request) for request in images.requests(client, count)])
    requests = images.requests(client, count)
    started = time.perf_counter()
    await asyncio.gather(*[client.answer(request) for request in requests])
    together = time.perf_counter() - started
    return {"one_by_one_s": one_by_one, "together_s": together, "ratio": together / one_by_one}


async def again(client: Client, images: Images) -> Figures:
    """Questions about one new image."""
    image = images.part()
    new = [user(image, text(QUESTION))]
    chats = {
        "new": new,
        "question": [user(image, text("Which colours has it?"))],
        "place": [user(text("Look at this one:"), image, text(QUESTION))],
        "turn": [*new, {"role": "assistant", "content": "A fox."}, user(text("And where is it?"))],
    }
    seconds = {name: await client.ttft(chat) for name, chat in chats.items()}
    figures = {f"{name}_ttft_s": took for name, took in seconds.items()}
    return figures | {f"{name}_ratio": took / seconds["new"] for name, took in seconds.items() if name != "new"}


@asynccontextmanager
async def new_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Each request has a connection of its own: a server may close an idle one at any moment."""
    connector, timeout = aiohttp.TCPConnector(force_close=True), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as session:
        yield session


async def alone(server: Server, seen: Path, read: Path, images: Images, arguments: argparse.Namespace) -> None:
    """What streams of mlxd feel."""
    async with new_session() as session:
        seer = Client(server, session, steady(seen))
        reader = Client(replace(server, model="text"), session, steady(read))
        for client in (seer, reader):
            await client.ttft("Hello", 4)  # loads the model
        for name, stream_of in {"pace": reader, "own": seer}.items():
            part = partial(pace, stream_of, seer, images, arguments.images)
            show(server.name, name, (await medians({name: part}, arguments.runs))[name])


async def batches(servers: list[Server], seen: Path, images: Images, arguments: argparse.Namespace) -> None:
    """Servers and mlx-vlm in turn, and how many times as long as each of them mlxd takes."""
    raw = Raw(seen)
    async with new_session() as session:
        clients = {server.name: Client(server, session, {}) for server in servers}

        def parts(count: int) -> dict[str, Callable[[], Awaitable[Figures]]]:
            asked = {name: partial(batch, client, images, count) for name, client in clients.items()}
            return {**asked, "mlx-vlm": partial(raw.one_by_one, images, count)}

        await medians(parts(1), 1)  # what a first time costs
        taken = await medians(parts(arguments.images), arguments.runs)
    for name, figures in taken.items():
        show(name, "batch", figures)
    mine = taken.pop("mlxd")
    for name, figures in taken.items():
        ratios = {key: mine[key] / figures[key] for key in ("one_by_one_s", "together_s") if key in figures}
        show("mlxd", "batch", {f"{key.removesuffix('_s')}_of_{name}": ratio for key, ratio in ratios.items()})


async def questions(servers: list[Server], seen: Path, images: Images, arguments: argparse.Namespace) -> None:
    """Servers in turn."""
    async with new_session() as session:
        bias = steady(seen)
        asked = {server.name: partial(again, Client(server, session, bias), images) for server in servers}
        for name, figures in (await medians(asked, arguments.runs)).items():
            show(name, "again", figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--side", type=int, default=448, help="pixels of an image's side")
    parser.add_argument("--images", type=int, default=4)
    arguments = parser.parse_args()
    images = Images(arguments.side)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen = vision_folder(folder, arguments.side)
        read = cached("tiny", lambda out: build_tiny_model(out, size="tiny"))
        with mlxd(seen, folder, f'[[model]]\nname = "text"\npath = "{read}"\n') as server:
            asyncio.run(alone(server, seen, read, images, arguments))
            with mlx_vlm_server(seen) as peer:
                asyncio.run(batches([server, peer], seen, images, arguments))
                asyncio.run(questions([server, peer], seen, images, arguments))


if __name__ == "__main__":
    main()
