"""The form that a client wants its answer to have, under every name that clients have for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct

from mlxd.daemon.api.body import decode_object
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.wanted_guide import ANY_OBJECT, WantedGuide, check_size, schema_guide
from mlxd.engines.types import Guide, GuideKind

MAX_CHOICES = 1024
MAX_SCHEMA_NAME = 64

_NO_WORD = re.compile(r"[^A-Za-z0-9_]")

Schema = dict[str, Any] | str
GuideText = Annotated[str, Meta(min_length=1)]
Choices = Annotated[list[GuideText], Meta(min_length=1, max_length=MAX_CHOICES)]


class TextFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Whatever the model says."""


class ObjectFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON Schema; its name and description are the client's own, and it is always kept to."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_SCHEMA_NAME)]
    schema: dict[str, Any]
    strict: bool | None = None
    description: str | None = None


class SchemaFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON that a schema describes."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """The form, as vLLM calls it; one of them at most."""

    json: Schema | None = None
    regex: GuideText | None = None
    grammar: GuideText | None = None
    choice: Choices | None = None
    json_object: bool | None = None


class GuidedBody(Protocol):
    """The fields of a request that speak of a form."""

    @property
    def response_format(self) -> ResponseFormat | None: ...
    @property
    def guided_json(self) -> Schema | None: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_grammar(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[str] | None: ...
    @property
    def structured_outputs(self) -> StructuredOutputs | None: ...


def wanted_guide(body: GuidedBody) -> WantedGuide | None:
    """The form that a request asks for. Raises InvalidField, also when it asks for two."""
    wanted = list(_wanted(body))
    if len(wanted) > 1:
        first, second = wanted[0].param, wanted[1].param
        raise InvalidField(f"{second} cannot be combined with {first}; send one of them", second)
    for each in wanted:
        check_size(len(each.guide.text), each.param)
    return wanted[0] if wanted else None


def _wanted(body: GuidedBody) -> Iterator[WantedGuide]:
    match body.response_format:
        case ObjectFormat():
            yield WantedGuide(ANY_OBJECT, "response_format")
        case SchemaFormat(named):
            yield schema_guide(named.schema, "response_format")
    yield from _named("guided_", body.guided_json, body.guided_regex, body.guided_grammar, body.guided_choice)
    outputs = body.structured_outputs
    if outputs is None:
        return
    yield from _named("structured_outputs.", outputs.json, outputs.regex, outputs.grammar, outputs.choice)
    if outputs.json_object:
        yield WantedGuide(ANY_OBJECT, "structured_outputs.json_object")


def _named(
    prefix: str, schema: Schema | None, regex: str | None, grammar: str | None, choices: Sequence[str] | None
) -> Iterator[WantedGuide]:
    if schema is not None:
        yield schema_guide(_schema(schema, f"{prefix}json"), f"{prefix}json")
    if regex is not None:
        yield WantedGuide(Guide(GuideKind.REGEX, regex), f"{prefix}regex")
    if grammar is not None:
        yield WantedGuide(Guide(GuideKind.GRAMMAR, grammar), f"{prefix}grammar")
    if choices is not None:
        yield WantedGuide(Guide(GuideKind.REGEX, _one_of(choices, f"{prefix}choice")), f"{prefix}choice")


def _schema(schema: Schema, param: str) -> dict[str, Any]:
    if not isinstance(schema, str):
        return schema
    check_size(len(schema), param)
    try:
        return decode_object(schema.encode())
    except InvalidField:
        raise InvalidField(f"{param}: expected a JSON Schema, as an object or as JSON text", param) from None


def _one_of(choices: Sequence[str], param: str) -> str:
    check_size(sum(map(len, choices)), param)
    return "|".join(_NO_WORD.sub(lambda match: f"\\x{{{ord(match[0]):x}}}", choice) for choice in choices)
