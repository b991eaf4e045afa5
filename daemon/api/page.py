"""GET / and GET /page/{file}: the page for operators. It holds no data: it asks for that like any other client."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from aiohttp import ETag, web

from mlxd.daemon.api.routes import Route

INDEX = "index.html"
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline, no frame around it: names and texts of others cannot become code.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page; `tag` changes with its content."""

    body: bytes
    content_type: str
    tag: str


PAGE = web.AppKey("page", dict[str, PageFile])


def read_page() -> dict[str, PageFile]:
    """All files of the page by name, read from the package."""
    found = {}
    for file in files("mlxd.daemon").joinpath("page").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            found[file.name] = PageFile(body, kind, hashlib.sha256(body).hexdigest()[:32])
    return found


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route("GET", "/", index, None, answer=str, answer_type="text/html"),
        Route("GET", "/page/{file}", part, None, answer=str, answer_type="text/javascript"),
    ]


async def index(request: web.Request) -> web.Response:
    """The page for operators."""
    return _answer(request, request.app[PAGE][INDEX])


async def part(request: web.Request) -> web.Response:
    """A script, a style sheet or an image of the page."""
    file = request.app[PAGE].get(request.match_info["file"])
    if file is None:
        raise web.HTTPNotFound
    return _answer(request, file)


def _answer(request: web.Request, file: PageFile) -> web.Response:
    headers = {**HEADERS, "ETag": f'"{file.tag}"'}
    if ETag(file.tag) in (request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, headers={**headers, "Content-Type": file.content_type})
