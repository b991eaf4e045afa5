"""GET /openapi.json: the API as its own types describe it."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec
from aiohttp import web

from mlxd.daemon.api.asked_model import MAX_WAIT_HEADER
from mlxd.daemon.api.error_shapes import ErrorShape, shape_at
from mlxd.daemon.api.routes import Route, Scope

Json = dict[str, Any]
Schemas = Mapping[Any, Json]

JSON = "application/json"

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SECURITY: list[Json] = [{"bearer": []}, {"x_api_key": []}, {}]
_SECURITY_SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_MAX_WAIT: Json = {
    "name": MAX_WAIT_HEADER,
    "in": "header",
    "required": False,
    "description": "The longest to wait for the model, as a duration; 0 for not at all.",
    "schema": {"type": "string"},
    "example": "5s",
}


class Document:
    """The document of an application, made when it is first asked for."""

    def __init__(self, all_routes: Iterable[Route], shapes: tuple[ErrorShape, ...], version: str) -> None:
        self._routes = tuple(all_routes)
        self._shapes = shapes
        self._version = version

    @cached_property
    def body(self) -> bytes:
        return msgspec.json.encode(openapi(self._routes, self._shapes, self._version))


DOCUMENT = web.AppKey("openapi", Document)


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("GET", "/openapi.json", describe, None, answer=dict[str, Any])]


async def describe(request: web.Request) -> web.Response:
    """What this daemon's API takes and answers, as OpenAPI 3.1."""
    return web.Response(body=request.app[DOCUMENT].body, content_type=JSON)


def openapi(all_routes: Iterable[Route], shapes: tuple[ErrorShape, ...], version: str) -> Json:
    """The OpenAPI document of these routes."""
    known = list(all_routes)
    errors = {route.path: shape_at(route.path, shapes).kind for route in known}
    kinds = list(dict.fromkeys((*(kind for route in known for kind in _kinds(route)), *errors.values())))
    described, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, described, strict=True))
    _close_bodies(known, components, schemas)
    paths: dict[str, Json] = {}
    for route in known:
        operations = paths.setdefault(route.name, {})
        operations[route.method.lower()] = _operation(route, schemas, schemas[errors[route.path]])
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlxd", "version": version, "description": "Many MLX models behind one local address."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY_SCHEMES},
    }


def _operation(route: Route, schemas: Schemas, error: Json) -> Json:
    operation: Json = {
        "operationId": route.method.lower() + re.sub(r"[^A-Za-z0-9]+", "_", route.name).rstrip("_"),
        "summary": (inspect.getdoc(route.handler) or "").partition("\n")[0],
        "tags": [_tag(route)],
        "parameters": list(_parameters(route)),
        "responses": _responses(route, schemas, error),
    }
    if route.body is not None:
        operation["requestBody"] = _body(route, schemas)
    if route.scope is not None:
        operation["security"] = _SECURITY
        operation["x-mlxd-scope"] = str(route.scope)
    return operation


def _parameters(route: Route) -> Iterator[Json]:
    for name in _PLACEHOLDER.findall(route.name):
        schema = {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    for name, query in route.query.items():
        schema = dict(query.schema)
        yield {"name": name, "in": "query", "required": False, "description": query.meaning, "schema": schema}
    if route.scope is Scope.INFER and route.method == "POST":
        yield _MAX_WAIT


def _body(route: Route, schemas: Schemas) -> Json:
    content: Json = {"schema": _schema(route.body, schemas)}
    if route.example is not None:
        content["example"] = route.example
    return {"required": type(None) not in typing.get_args(route.body), "content": {JSON: content}}


def _responses(route: Route, schemas: Schemas, error: Json) -> Json:
    content: Json = {}
    if route.answer is not None:
        content[route.answer_type] = {"schema": _schema(route.answer, schemas)}
    if route.event is not None:
        content[route.event_type] = {"schema": {"type": "string"}, "x-event": _schema(route.event, schemas)}
    failed = {"description": "The request was refused or has failed.", "content": {JSON: {"schema": error}}}
    other = {
        str(status): {"description": "See the answer.", "content": {JSON: {"schema": _schema(kind, schemas)}}}
        for status, kind in route.also.items()
    }
    return {"200": {"description": "It is done.", "content": content}, **other, "4XX": failed, "5XX": failed}


def _schema(kind: Any, schemas: Schemas) -> Json:
    found = [schemas[each] for each in _parts(kind)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _kinds(route: Route) -> Iterator[Any]:
    for kind in (route.body, route.answer, route.event, *route.also.values()):
        if kind is not None:
            yield from _parts(kind)


def _parts(kind: Any) -> tuple[Any, ...]:
    """A type, or the types of a union but None; msgspec describes no union of several objects."""
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return (kind,)
    return tuple(each for each in typing.get_args(kind) if each is not type(None))


def _close_bodies(known: Iterable[Route], components: Mapping[str, Json], schemas: Schemas) -> None:
    """Fields that a body's type does not have are refused, or have to be left out."""
    for route in known:
        for kind in _parts(route.body) if route.body is not None else ():
            name = schemas[kind].get("$ref", "").rpartition("/")[2]
            if name in components:
                components[name]["additionalProperties"] = False


def _tag(route: Route) -> str:
    first, _, _ = route.path.strip("/").partition("/")
    return first or "mlxd"
