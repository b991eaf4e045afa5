"""The API's own description, and what it says that a body must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

from mlxd.daemon.api.application import PARTS, SHAPES_OF_FACADES
from mlxd.daemon.api.openapi import openapi
from mlxd.daemon.api.routes import Route

ROUTES: tuple[Route, ...] = tuple(route for part in PARTS for route in part.routes())
DOCUMENT: dict[str, Any] = openapi(ROUTES, SHAPES_OF_FACADES, "1")
DIALECT = jsonschema.Draft202012Validator


def bodies() -> Iterator[Route]:
    """The calls that take a body."""
    return (route for route in ROUTES if route.body is not None)


def operation(route: Route) -> dict[str, Any]:
    """What the document says of a call."""
    found: dict[str, Any] = DOCUMENT["paths"][route.name][route.method.lower()]
    return found


def body_schema(route: Route) -> dict[str, Any]:
    """The schema of a call's body, which is an object."""
    schema = operation(route)["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rpartition("/")[2]
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][name]
    return found


def validator(schema: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
    """Checks against a schema of this document, which may refer to others."""
    return DIALECT({**schema, "components": DOCUMENT["components"]})


def path(route: Route) -> str:
    """A path of a call, for a model that the served fakes have."""
    return route.name.replace("{id}", "m").replace("{request_id}", "r")


def example(route: Route) -> dict[str, Any]:
    """A body that is taken, for the model of the served fakes."""
    given = dict(route.example or {})
    return given | {"model": "m"} if "model" in given else given
