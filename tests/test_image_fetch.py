"""Images are fetched from the hosts that are listed and from no other, within bounds, from a real server."""

import asyncio
import gzip
import socket

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver
from image_bodies import PNG

from mlxd.daemon.api import image_fetch
from mlxd.daemon.api.image_fetch import MAX_REDIRECTS, fetching
from mlxd.daemon.api.public_addresses import NotPublic, PublicResolver, is_public
from mlxd.daemon.api.refusals import InvalidField

MOST = 100_000
ANYONE = ("127.0.0.1", "localhost")
FILES = {
    "image": {"body": PNG, "content_type": "text/html", "headers": {"Set-Cookie": "a=b"}},
    "gzip": {"body": gzip.compress(PNG), "headers": {"Content-Encoding": "gzip"}},
    "large": {"body": PNG + bytes(MOST)},
    "text": {"text": "<html>"},
    "empty": {},
    "loop": {"status": 307, "headers": {"Location": "/loop"}},
}


class Host:
    """A server of images on this machine; `asked` has the headers of each request, by path."""

    def __init__(self):
        self.port = 0
        self.asked = {}
        self.left = asyncio.Event()

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}/{path}"

    async def answer(self, request):
        path = request.path.removeprefix("/")
        self.asked[path] = request.headers
        match path.split("/"):
            case ["to", target]:
                raise web.HTTPFound(target.replace("|", "/").replace("PORT", str(self.port)))
            case ["status", code]:
                return web.Response(status=int(code), body=PNG)
            case ["endless"]:
                return await self._endless(request)
            case ["cut"]:
                return await self._cut(request)
            case _:
                return web.Response(**FILES[path])

    async def _cut(self, request):
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(PNG[:10])
        request.transport.abort()
        return response

    async def _endless(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await response.write(PNG)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.set()
            raise


@pytest.fixture
async def host():
    host = Host()
    application = web.Application()
    application.router.add_get("/{path:.*}", host.answer)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host.port = runner.addresses[0][1]
    yield host
    await runner.cleanup()


async def fetch(url, hosts=ANYONE):
    async with fetching(hosts, MOST) as fetcher:
        return await fetcher.fetch(url, "here")


async def refused(url, hosts=ANYONE):
    with pytest.raises(InvalidField) as caught:
        await fetch(url, hosts)
    assert caught.value.param == "here"
    return str(caught.value)


async def test_an_image_is_fetched_whatever_type_its_host_names(host):
    assert await fetch(host.url("image")) == PNG
    assert await fetch(host.url("image", "LocalHost")) == PNG


async def test_nothing_of_the_daemon_is_told_to_a_host(host, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    await fetch(host.url("to/|image"))
    headers = host.asked["image"]
    assert set(headers) == {"Host", "Accept", "Accept-Encoding", "User-Agent", "Connection"}
    assert (headers["User-Agent"], headers["Accept-Encoding"]) == ("mlxd", "identity")


async def test_without_listed_hosts_nothing_is_fetched_and_the_key_is_named(host):
    assert "images.remote_hosts" in await refused(host.url("image"), ())
    assert not host.asked


async def test_a_host_that_is_not_listed_is_refused_by_its_name(host):
    message = await refused(host.url("image"), ("images.example",))
    assert "127.0.0.1" in message
    assert "images.remote_hosts" in message
    assert not host.asked


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x.png",
        "/etc/passwd",
        "x.png",
        "",
        "http://",
        "http:///x.png",
        "http://[::1/x",
        "http://127.0.0.1:99999/x",
        "javascript:alert(1)",
        "gopher://127.0.0.1/",
        "//127.0.0.1/x.png",
    ],
)
async def test_what_is_no_http_url_is_refused(url):
    assert "data URL" in await refused(url)


async def test_a_url_with_credentials_is_refused(host):
    for user in ("me@", "me:secret@", ":secret@"):
        message = await refused(f"http://{user}127.0.0.1:{host.port}/image")
        assert "password" in message
        assert "secret" not in message
    assert not host.asked


async def test_a_redirect_is_followed_to_a_listed_host(host):
    assert await fetch(host.url("to/|image")) == PNG
    assert await fetch(host.url("to/http:||localhost:PORT|image")) == PNG


@pytest.mark.parametrize(
    "target", ["http:||localhost:PORT|image", "file:|||etc|passwd", "http:||[::1]:PORT|image", "||localhost:PORT|image"]
)
async def test_a_redirect_to_another_host_is_refused(target, host):
    await refused(host.url(f"to/{target}"), ("127.0.0.1",))
    assert "image" not in host.asked


async def test_with_any_host_a_redirect_into_the_network_is_refused(host):
    message = await refused(host.url("to/http:||localhost:PORT|image"), ("127.0.0.1", "*"))
    assert "not public" in message
    assert "image" not in host.asked


async def test_redirects_without_end_are_given_up(host):
    assert f"{MAX_REDIRECTS} times" in await refused(host.url("loop"))


@pytest.mark.parametrize("code", [204, 304, 401, 404, 500])
async def test_a_host_without_the_image_is_told_with_its_status(code, host):
    assert f"status {code}" in await refused(host.url(f"status/{code}"))


async def test_a_compressed_answer_is_not_unpacked(host):
    assert "compressed" in await refused(host.url("gzip"))


async def test_a_file_that_is_too_large_is_given_up(host):
    assert "images.max_bytes" in await refused(host.url("large"))


async def test_what_is_no_image_is_refused(host):
    assert "PNG" in await refused(host.url("text"))
    assert "empty" in await refused(host.url("empty"))


async def test_an_answer_that_breaks_off_is_refused(host):
    assert "breaks off" in await refused(host.url("cut"))


async def test_a_host_that_takes_no_connection_or_has_no_address_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        assert "no connection" in await refused(f"http://127.0.0.1:{taken.getsockname()[1]}/x")
    assert "no address" in await refused("http://nowhere.invalid/x", ("*",))
    label = "a" * 70
    assert "no address" in await refused(f"http://{label}.example/x", ("*",))


async def test_a_slow_host_is_given_up_after_the_time_for_an_image(host, monkeypatch):
    monkeypatch.setattr(image_fetch, "FETCH_TIMEOUT", 0.2)
    assert "within 0.2 s" in await refused(host.url("endless"))
    async with asyncio.timeout(5):
        await host.left.wait()


async def test_a_cancel_ends_a_fetch(host):
    fetching_it = asyncio.ensure_future(fetch(host.url("endless")))
    async with asyncio.timeout(5):
        while "endless" not in host.asked:
            await asyncio.sleep(0.002)
        fetching_it.cancel()
        await host.left.wait()
    with pytest.raises(asyncio.CancelledError):
        await fetching_it


# ---- addresses

PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "2002:808:808::1"]
INSIDE = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "192.0.0.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1",
    "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:c0a8:101::1", "2001:0:7f00:1::",
]  # fmt: skip


def test_only_addresses_of_the_public_internet_are_public():
    assert [address for address in PUBLIC if not is_public(address)] == []
    assert [address for address in INSIDE if is_public(address)] == []


@pytest.mark.parametrize("address", INSIDE)
async def test_an_address_inside_is_refused_in_every_notation_if_any_host_may_be_asked(address):
    shown = f"[{address}]" if ":" in address else address
    assert "not public" in await refused(f"http://{shown}:1/x", ("*",))


@pytest.mark.parametrize("host_name", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "0x7f000001", "127.0.0.1."])
async def test_other_spellings_of_a_loopback_address_reach_nothing(host_name, host):
    await refused(f"http://{host_name}:{host.port}/image", ("*",))
    assert not host.asked


async def test_a_name_that_leads_inside_is_refused_unless_it_is_listed_itself(host):
    assert "not public" in await refused(host.url("image", "localhost"), ("*",))
    assert not host.asked
    assert await fetch(host.url("image", "localhost"), ("*", "localhost")) == PNG


class Names(AbstractResolver):
    """A resolver that gives what the test says."""

    def __init__(self, *addresses):
        self.addresses = addresses
        self.is_closed = False

    async def resolve(self, host, port=0, family=socket.AF_INET):
        common = {"hostname": host, "port": port, "family": family, "proto": 0, "flags": 0}
        return [{**common, "host": address} for address in self.addresses]

    async def close(self):
        self.is_closed = True


async def test_of_a_names_addresses_only_the_public_ones_are_connected_to():
    names = Names("10.0.0.1", "8.8.8.8", "::1")
    resolver = PublicResolver(["Box.local."], lambda: names)
    assert [each["host"] for each in await resolver.resolve("a.example", 80)] == ["8.8.8.8"]
    assert [each["host"] for each in await resolver.resolve("box.local", 80)] == ["10.0.0.1", "8.8.8.8", "::1"]
    names.addresses = ("10.0.0.1", "fe80::1%eth0")
    with pytest.raises(NotPublic):
        await resolver.resolve("a.example", 80)
    await resolver.close()
    assert names.is_closed
