"""/openapi.json says what the daemon takes and answers: complete, well-formed, and its examples hold."""

import json
from collections import Counter

import aiohttp
import jsonschema
import pytest
from api_document import DIALECT, DOCUMENT, ROUTES, bodies, body_schema, operation, validator
from api_fakes import serving

from mlxd.daemon.api.routes import Scope

name = "{0.method} {0.path}".format
BODIES = pytest.mark.parametrize("route", list(bodies()), ids=name)


def references(value):
    """Every reference in a document."""
    if isinstance(value, dict):
        yield from (element for key, element in value.items() if key == "$ref")
        for element in value.values():
            yield from references(element)
    if isinstance(value, list):
        for element in value:
            yield from references(element)


async def test_the_daemon_serves_the_document_to_everybody():
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        async with http.get("/openapi.json") as answer:
            document = await answer.json()
            assert answer.status == 200
        routes = {(route.method, route.resource.canonical) for route in served.application.router.routes()}
    assert document["openapi"] == "3.1.0"
    documented = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert documented == {route for route in routes if route[0] != "HEAD"}


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does():
    operations = [operation(route) for route in ROUTES]
    counted = Counter(each["operationId"] for each in operations)
    assert max(counted.values()) == 1
    assert [each["operationId"] for each in operations if len(each["summary"]) < 10] == []


def test_every_reference_leads_somewhere():
    found = set(references(DOCUMENT))
    assert len(found) > 50
    schemas = {f"#/components/schemas/{each}" for each in DOCUMENT["components"]["schemas"]}
    assert found <= schemas


@pytest.mark.parametrize("schema", sorted(DOCUMENT["components"]["schemas"]))
def test_every_schema_is_one(schema):
    DIALECT.check_schema(DOCUMENT["components"]["schemas"][schema])


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_every_call_says_what_it_answers(route):
    answers = operation(route)["responses"]["200"]["content"]
    assert answers
    assert {"4XX", "5XX"} <= operation(route)["responses"].keys()


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_what_changes_something_needs_a_scope(route):
    if route.scope is None:
        assert route.method == "GET"
    else:
        assert operation(route)["x-mlxd-scope"] in list(Scope)


@BODIES
def test_a_body_that_is_needed_has_an_example_that_is_valid(route):
    body = operation(route)["requestBody"]
    if body["required"]:
        shown = body["content"]["application/json"]["example"]
        validator(body_schema(route)).validate(json.loads(json.dumps(shown)))


@BODIES
def test_a_field_that_a_body_does_not_have_is_not_in_the_schema(route):
    with pytest.raises(jsonschema.ValidationError):
        validator(body_schema(route)).validate({"no_such_field": 1})
