"""A programmable registry and engine, and the real server around the real application."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from aiohttp import web, web_app

from mlxd.daemon.api.application import make_application
from mlxd.daemon.api.image_room import ImageRoom
from mlxd.daemon.api.responses.store import STORE, ResponseStore
from mlxd.daemon.api.running import RunningRequests
from mlxd.daemon.api.server import make_runner
from mlxd.daemon.api.services import Services
from mlxd.daemon.breadcrumbs_work import AtWork, unrecorded
from mlxd.daemon.catalog import Catalog
from mlxd.daemon.key_ring import KeyRing
from mlxd.daemon.keys import ApiKey
from mlxd.daemon.live import Live
from mlxd.daemon.peers.peers import Peers
from mlxd.daemon.settings import EngineSettings, ModelSettings, ServerSettings, Settings
from mlxd.daemon.tokenizer_threads import TokenizerThreads
from mlxd.engines.errors import ContextLengthExceeded, InvalidRequest
from mlxd.engines.generation import Generation
from mlxd.engines.prompt_images import EncodedPrompt, PreparedImage, PromptImages
from mlxd.engines.types import (
    EngineConfig,
    FinishReason,
    ModelInfo,
    Request,
    RequestOutput,
    RequestState,
    RequestStatus,
    Timing,
    Usage,
)
from mlxd.registry.lease import Lease
from mlxd.registry.names import NameTable
from mlxd.registry.residency import Waiter
from mlxd.registry.snapshot import ModelSnapshot
from mlxd.registry.spec import ModelKind, ModelSpec

VOCABULARY = 1000
HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def _images(content: Any) -> list[Any]:
    return [part for part in content if part["type"] == "image"] if isinstance(content, list) else []


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return str(content)
    return "".join("#" if part["type"] == "image" else part["text"] for part in content)


class FakeTokenizer:
    """One token for each character, and a record of what it was given."""

    def __init__(self) -> None:
        self.chats: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
        self.offered: list[Sequence[Mapping[str, Any]] | None] = []
        self.has_tools = True
        self.variables: set[str] = set()
        self.gate: Any = None
        self.takes_images = True

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % VOCABULARY for letter in text]

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        template: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        self.chats.append(([dict(message) for message in messages], dict(template or {})))
        self.offered.append(tools)
        if self.gate is not None:
            self.gate.wait(10)
        return self.encode("".join(_text(message["content"]) for message in messages) + ">")

    def encode_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        template: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> EncodedPrompt:
        """An image is a "#", and its array is its file. One that holds "broken" is."""
        tokens = self.encode_chat(messages, template, tools)
        files = [part["image"] for message in messages for part in _images(message["content"])]
        for file in files:
            if b"broken" in file.data:
                raise InvalidRequest(f"{file.param}: the image is broken", file.param)
        prepared = [PreparedImage(file.data[:1], 1, {"file": np.frombuffer(file.data, np.uint8)}) for file in files]
        return EncodedPrompt(tokens, PromptImages(prepared, ord("#"), len(tokens), {}) if prepared else None)

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode() if token < VOCABULARY - 1 else b"\xe2\x82"

    def template_reads(self, variable: str) -> bool:
        return variable in self.variables


class FakeEngine:
    """Gives what the test puts; records requests, and who left before the end."""

    def __init__(self, name: str = "m", context_length: int = 100) -> None:
        self.config = EngineConfig(name, Path("/nowhere"), context_length)
        self.info = ModelInfo(VOCABULARY, 0)
        self.tokenizer = FakeTokenizer()
        self.refusal: Exception | None = None
        self.live: dict[str, Generation] = {}
        self.arrivals: asyncio.Queue[Request] = asyncio.Queue()
        self.departures: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

    async def trim_prefix_cache(self, max_bytes: int) -> None:
        """Nothing is kept here."""

    def generate(self, request: Request) -> Generation:
        if self.refusal is not None:
            raise self.refusal
        wanted = request.sampling.max_tokens or 1
        if len(request.prompt) + wanted > self.config.context_length:
            raise ContextLengthExceeded(len(request.prompt), wanted, self.config.context_length)
        generation = Generation(request, self._leave)
        self.live[request.id] = generation
        self.arrivals.put_nowait(request)
        return generation

    def _leave(self, generation: Generation) -> None:
        del self.live[generation.request.id]
        self.departures.put_nowait((generation.request.id, generation.finished))

    def put(self, request: Request, item: RequestOutput | Exception) -> None:
        self.live[request.id].put(item)

    def cancel(self, request_id: str) -> bool:
        if request_id not in self.live or self.live[request_id].finished:
            return False
        self.live[request_id].put(last("", cancelled=True))
        return True

    def requests(self) -> tuple[RequestStatus, ...]:
        return tuple(RequestStatus(name, RequestState.DECODING, 1.0, Usage(6, 2, 1), 10.0) for name in self.live)


class FakeRegistry:
    """One engine behind a gate: a lease waits until `open` is set, or raises `refusal`."""

    def __init__(self, engine: FakeEngine, specs: Sequence[ModelSpec]) -> None:
        self.engine = engine
        self.specs = {spec.name: spec for spec in specs}
        self.open = asyncio.Event()
        self.open.set()
        self.refusal: Exception | None = None
        self.leases = 0
        self.waiters: list[Waiter] = []
        self.keys: list[str | None] = []
        self.waits: asyncio.Queue[tuple[str, float | None]] = asyncio.Queue()
        self.departures: asyncio.Queue[str | None] = asyncio.Queue()
        self.load: Any = None
        self.closing = False
        self.overdue = 0.0
        self.loaded: dict[str, Any] = {}
        self.state = "unloaded"

    def engines(self) -> dict[str, Any]:
        return self.loaded

    @asynccontextmanager
    async def lease(
        self, name: str, *, request_id: str | None = None, max_wait: float | None = None, key: str | None = None
    ) -> AsyncIterator[Lease]:
        waiter = Waiter(1, name, 0.0, request_id=request_id)
        self.waiters.append(waiter)
        self.waits.put_nowait((name, max_wait))
        self.keys.append(key)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.departures.put_nowait(request_id)
            raise
        finally:
            self.waiters.remove(waiter)
        if self.refusal is not None:
            raise self.refusal
        self.leases += 1
        try:
            yield Lease(self.engine, self.specs[name], 1, 0.5, 0.25)
        finally:
            self.leases -= 1

    def model(self, name: str) -> ModelSnapshot:
        return ModelSnapshot(self.specs[name], self.state, False, None, 0, 0, 0, 0, load=self.load)

    def spec(self, name: str) -> ModelSpec:
        return self.specs[name]

    def models(self) -> list[ModelSnapshot]:
        return [self.model(name) for name in self.specs]

    def waiting(self) -> tuple[Waiter, ...]:
        return tuple(self.waiters)


SPECS = (
    ModelSpec("m", Path("/nowhere"), aliases=("gpt-4o",), presets=("m-cold",), context_length=100),
    ModelSpec("org/embed", Path("/elsewhere"), ModelKind.EMBEDDING, context_length=50),
)
SEES = ModelSpec("sees", Path("/nowhere"), ModelKind.VISION, context_length=100, takes_images=True)


def live(settings: Settings, specs: Sequence[ModelSpec]) -> Live:
    """These settings and models in effect."""
    return Live(settings, Catalog(tuple(specs), NameTable.build(specs)))


class Served:
    """A running server and everything behind it."""

    def __init__(self, services: Services, registry: FakeRegistry, port: int, application: web.Application) -> None:
        self.services = services
        self.registry = registry
        self.engine = registry.engine
        self.port = port
        self.application = application
        self.url = f"http://127.0.0.1:{port}"


@asynccontextmanager
async def serving(
    *,
    server: ServerSettings | None = None,
    engine: EngineSettings | None = None,
    model: tuple[ModelSettings, ...] = (),
    extra: Sequence[web.RouteDef] = (),
    keys: Sequence[ApiKey] | KeyRing = (),
    responses: ResponseStore | None = None,
    specs: Sequence[ModelSpec] = SPECS,
    image_room: ImageRoom | None = None,
    loop_lag: float = 0.0,
    at_work: AtWork = unrecorded,
    **settings: Any,
) -> AsyncIterator[Served]:
    """The application on a free port, as the daemon serves it."""
    registry = FakeRegistry(FakeEngine(), specs)
    in_effect = Settings(server=server or ServerSettings(), engine=engine or EngineSettings(), model=model, **settings)
    services = Services(
        registry=registry,
        live=live(in_effect, specs),
        reloader=SimpleNamespace(),
        tokenizers=TokenizerThreads(1),
        running=RunningRequests(),
        guard=SimpleNamespace(latest=SimpleNamespace(at=math.inf)),
        books=SimpleNamespace(),
        keys=keys if isinstance(keys, KeyRing) else KeyRing(Path("/nowhere"), keys),
        image_room=image_room or ImageRoom(),
        loop_lag=lambda: loop_lag,
        at_work=at_work,
        peers=Peers(lambda: in_effect.peer, interval=0.1),
    )
    application = make_application(services)
    if responses is not None:
        application[STORE] = responses
    application.add_routes(extra)
    async with listening(application) as port, looking(services.peers):
        yield Served(services, registry, port, application)
    assert not any(peer.in_flight or peer.awaited for peer in services.peers.all())
    assert len(services.running) == 0
    assert registry.leases == 0
    assert services.image_room.held == 0


@asynccontextmanager
async def looking(peers: Peers) -> AsyncIterator[None]:
    """Peers are looked at meanwhile, each at least once before."""
    looks = asyncio.ensure_future(peers.run())
    await peers.look_again(peers.all())
    try:
        yield
    finally:
        looks.cancel()
        await asyncio.wait({looks})


@asynccontextmanager
async def listening(application: web.Application) -> AsyncIterator[int]:
    """A real server with the daemon's own options; gives its port."""
    runner = make_runner(application, 1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        # it keeps the last thousand applications, through which each collection of garbage would look
        web_app._cached_build_middleware.cache_clear()


def piece(text: str) -> RequestOutput:
    return RequestOutput(text, Usage(6, 1))


def last(text: str, reason: FinishReason = FinishReason.STOP, *, cancelled: bool = False) -> RequestOutput:
    return RequestOutput(text, Usage(6, 3, 4), Timing(0.1, 0.2, 30.0), reason, cancelled)


async def raw(port: int, head: str, body: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send bytes as they are; `head` has no blank line at its end, lines end with a newline."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
    await writer.drain()
    return reader, writer


async def post(port: int, path: str, body: Any, **headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a JSON body by hand, to be hung up on at will."""
    data = msgspec.json.encode(body)
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return await raw(port, "\n".join(lines), data)


async def answer_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer; names in lower case."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}


def events(text: str) -> list[Any]:
    """The data of a stream's events; comments are left out."""
    data = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    return [block if block == "[DONE]" else msgspec.json.decode(block) for block in data]
