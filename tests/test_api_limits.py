"""How long and how large a request may be on its way in, and that no name in it is ever a path."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from api_calls import CHAT, ask, code_of, hello, within
from api_fakes import answer_head, raw, serving
from virtual_time import now, passes

from mlxd.daemon.api.body import BODY_STALL, LEAST_RATE, RATE_GRACE, received
from mlxd.daemon.api.refusals import BodyTooLarge, InvalidField
from mlxd.daemon.api.server import Patience, make_runner
from mlxd.daemon.listening import listening
from mlxd.daemon.settings import ServerSettings

HEAD = "GET /health HTTP/1.1\nHost: localhost"


@asynccontextmanager
async def patient(patience: Patience, extra=()):
    """The port of a server with these bounds."""
    async with serving(extra=extra) as served:
        runner = make_runner(served.application, 1, patience)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
        await runner.cleanup()


async def is_closed(reader, seconds=0.02):
    """Whether the other side hangs up within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await reader.read(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def trickle(reader, writer, data):
    """Send byte by byte until the other side hangs up; how many bytes went."""
    for count, byte in enumerate(data):
        writer.write(bytes([byte]))
        if await is_closed(reader):
            return count
    raise AssertionError("nobody hung up")


# -- the head ----------------------------------------------------------------------------------------------------


async def test_a_head_that_comes_byte_by_byte_is_ended():
    async with patient(Patience(idle=60, head=0.5)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = await within(trickle(reader, writer, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 500))
        assert 0 < sent < 100
        writer.close()


async def test_so_is_the_second_one_of_a_connection():
    async with patient(Patience(idle=60, head=0.2)) as port:
        reader, writer = await raw(port, HEAD)
        _, headers = await answer_head(reader)
        await reader.readexactly(int(headers["content-length"]))
        assert not await is_closed(reader, 0.4)  # between requests it may take its time
        await within(trickle(reader, writer, b"\r\n" * 5 + b"GET /health HTTP/1.1\r\nX: " + b"y" * 500))
        writer.close()


async def test_a_head_that_was_begun_and_left_is_ended_and_so_is_a_connection_that_says_nothing():
    async with patient(Patience(idle=0.3, head=0.1)) as port:
        begun, begun_writer = await asyncio.open_connection("127.0.0.1", port)
        begun_writer.write(b"GET /hea")
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", port)
        assert await within(begun.read()) == b""
        assert await within(silent.read()) == b""
        for writer in (begun_writer, silent_writer):
            writer.close()


async def test_an_answer_may_take_longer_than_a_head():
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_):
        asked.set()
        await answer.wait()
        return web.json_response({})

    async with patient(Patience(idle=60, head=0.1), extra=[web.get("/slow", slow)]) as port:
        reader, writer = await raw(port, HEAD.replace("/health", "/slow"))
        await within(asked.wait())
        writer.write(b"GET /hea")  # the next one, begun early
        assert not await is_closed(reader, 0.3)
        answer.set()
        assert (await within(answer_head(reader)))[0] == 200
        writer.close()


@pytest.mark.parametrize(
    "head",
    [
        f"GET /{'x' * 9000} HTTP/1.1\nHost: localhost",
        f"GET /health?{'x' * 9000} HTTP/1.1\nHost: localhost",
        f"{HEAD}\nX-Long: {'x' * 9000}",
        f"{HEAD}\n{'X' * 9000}: x",
        HEAD + "".join(f"\nX-{number}: x" for number in range(200)),
        f"{HEAD}\nX-Request-Id: {'x' * 9000}",
        f"{HEAD}\nContent-Length: 1\nContent-Length: 2",
        f"{HEAD}\nContent-Length: 1\nTransfer-Encoding: chunked",
        f"{HEAD}\nContent-Length: -1",
        f"{HEAD}\nbad header",
    ],
    ids=["path", "query", "value", "name", "count", "id", "lengths", "smuggled", "negative", "colon"],
)
async def test_a_head_that_is_too_large_or_no_head_is_refused_in_json(head):
    async with serving() as served:
        assert await code_of(served.port, head) == (400, "invalid_request")


async def test_a_head_without_end_is_refused_before_it_fills_memory():
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 200_000)
        assert (await within(answer_head(reader)))[0] == 400
        writer.close()


# -- connections -------------------------------------------------------------------------------------------------

FILES = 512
FLOOD = f"""
import contextlib, resource, socket, sys
from concurrent.futures import ThreadPoolExecutor
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

def connect(client):
    client.settimeout(5)
    with contextlib.suppress(OSError):
        client.connect(("127.0.0.1", int(sys.argv[1])))

clients = [socket.socket() for _ in range({2 * FILES})]
with ThreadPoolExecutor(64) as threads:
    list(threads.map(connect, clients))
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def few_files():
    """This process may open FILES files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 4 * FILES:
        pytest.skip("there are too few files to use up")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_flood_of_connections_leaves_files_and_room_to_others(few_files):
    broken = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context["message"]))
    async with serving() as served, listening(served.application, ServerSettings(port=0), 1) as address:
        port = address.rpartition(":")[2]
        command = (sys.executable, "-c", FLOOD, port)
        flood = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        await asyncio.wait_for(flood.stdout.readline(), 60)
        assert await within(code_of(int(port), "GET /nothing HTTP/1.1\nHost: localhost")) == (404, "not_found")
        assert broken == []
        flood.stdin.close()
        await within(flood.wait())


# -- the answer --------------------------------------------------------------------------------------------------

MUCH = 24_000_000
"""Bytes that no pair of sockets takes, so that the daemon has to wait for its client to read."""
PIECE = 3_000_000


async def asked_for_much(port, version="1.1"):
    """A client of a call that answers MUCH bytes; it has read the head."""
    reader, writer = await raw(port, f"GET /much HTTP/{version}\nHost: localhost")
    assert (await answer_head(reader))[0] == 200
    return reader, writer


def giving_much():
    async def much(_):
        return web.Response(body=bytes(MUCH))

    return [web.get("/much", much)]


async def rest_of(reader):
    """How many bytes come until the other side hangs up."""
    count = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PIECE):
            count += len(data)
    return count


@pytest.mark.virtual_time
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_client_that_reads_nothing_of_its_answer_is_hung_up_on(version):
    async with patient(Patience(), giving_much()) as port:
        reader, writer = await asked_for_much(port, version)
        await passes(2 * Patience().unread + 1)
        assert await rest_of(reader) < MUCH
        writer.close()


@pytest.mark.virtual_time
async def test_one_that_reads_slowly_gets_all_of_it():
    async with patient(Patience(), giving_much()) as port:
        reader, writer = await asked_for_much(port)
        for _ in range(MUCH // PIECE):
            await passes(Patience().unread - 1)
            await reader.readexactly(PIECE)
        writer.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_few_bytes_that_nobody_reads_are_not_waited_for_either(version):
    """Too few to hold a handler up, but a connection is not closed before they are sent."""
    size = 60_000

    async def few(request):
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return web.Response(body=bytes(size))

    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        async with patient(Patience(), [web.get("/few", few)]) as port:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, f"GET /few HTTP/{version}\r\nHost: localhost\r\n\r\n".encode())
            await passes(2 * Patience().unread + 1)
            count = 0
            with contextlib.suppress(ConnectionError):
                while data := await loop.sock_recv(client, size):
                    count += len(data)
            assert count < size


# -- the body ----------------------------------------------------------------------------------------------------


def paced(*pieces):
    """Gives each of the pieces after so many seconds, and then nothing for ever."""
    left = iter(pieces)

    async def read():
        seconds, piece = next(left, (10**9, b""))
        await passes(seconds)
        return piece

    return read


@pytest.mark.virtual_time
async def test_a_body_that_comes_at_a_slow_links_rate_is_taken():
    slow = [(10, b"x" * LEAST_RATE * 10)] * 100
    assert len(await received(paced(*slow, (0, b"")), 10**7)) == LEAST_RATE * 1000
    assert await received(paced((BODY_STALL - 1, b"{}"), (0.5, b"")), 100) == b"{}"


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        ([], BODY_STALL),
        ([(BODY_STALL - 1, b"x")] * 1000, RATE_GRACE),
        ([(1, b"x")] * 1000, RATE_GRACE),
        ([(0, b"x" * 100_000), *[(50, b"x")] * 1000], RATE_GRACE + 100),
        ([(0, b"x" * 10**6)], BODY_STALL),
    ],
)
async def test_a_body_that_comes_too_slowly_is_ended(pieces, ends):
    started = now()
    with pytest.raises(InvalidField, match="too slowly"):
        await received(paced(*pieces), 10**7)
    assert now() - started == pytest.approx(ends, abs=0.2)


@pytest.mark.virtual_time
async def test_a_body_is_refused_where_it_goes_over_the_limit():
    with pytest.raises(BodyTooLarge):
        await received(paced(*[(0, b"x" * 60)] * 2), 100)


# -- names are no paths ------------------------------------------------------------------------------------------

PATHS = [
    "../../etc",
    "/etc",
    "/etc/passwd",
    "..",
    ".",
    "~",
    "~root",
    "m/../../etc",
    "m/.",
    "./m",
    "m/",
    "m\x00",
    "m\x00/../x",
    "file:///etc/passwd",
    "\\\\server\\share",
    "C:\\m",
    "m\n",
    "m\r\nX: y",
    "\uff4d",
    "%2e%2e%2fetc",
    "org/../m",
]


@pytest.mark.parametrize("name", PATHS)
async def test_a_models_name_is_looked_up_and_never_opened(name):
    """The models of this server lie where nothing is: had a name been a path, it would not be unknown."""
    async with serving() as served:
        status, text = await ask(served, hello(model=name))
        assert (status, json.loads(text)["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1/models/%2e%2e%2fetc", "/admin/models/..%2f..%2fetc/load", "/v1/models/m%00"])
async def test_a_name_in_an_address_is_no_path_either(path):
    async with serving() as served:
        method = "POST" if path.endswith("/load") else "GET"
        assert await code_of(served.port, f"{method} {path} HTTP/1.1\nHost: localhost") == (404, "model_not_found")


@pytest.mark.parametrize("field", ["path", "adapter", "adapter_path", "adapters", "lora", "draft_model", "cache_file"])
async def test_no_field_of_a_request_names_a_file(field, tmp_path):
    async with serving() as served:
        status, text = await ask(served, hello(**{field: str(Path(tmp_path))}), CHAT)
        assert (status, json.loads(text)["error"]["param"]) == (400, field)
