"""Guides to try, and what they allow."""

from __future__ import annotations

import json

import numpy as np

from mlxd.engines.guidance import guide_compiler
from mlxd.engines.guide_follower import GuideFollower, Reasoning
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide, GuideKind

SCHEMA, REGEX, GRAMMAR = GuideKind.JSON_SCHEMA, GuideKind.REGEX, GuideKind.GRAMMAR
INTEGER = {"type": "integer", "minimum": -20, "maximum": 300}
# Every string and array is bounded, so that even random weights come to an end.
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": INTEGER,
        "mood": {"enum": ["calm", "cross", None, 7]},
        "home": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 8}, "number": INTEGER},
            "required": ["street", "number"],
            "additionalProperties": False,
        },
        "scores": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "age", "mood", "home", "scores"],
    "additionalProperties": False,
}


def schema(value) -> Guide:
    return Guide(SCHEMA, value if isinstance(value, str) else json.dumps(value))


def is_person(value) -> bool:
    """PERSON, checked by hand."""

    def is_integer(number) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and -20 <= number <= 300

    return (
        set(value) == set(PERSON["properties"])
        and isinstance(value["name"], str)
        and len(value["name"]) <= 12
        and is_integer(value["age"])
        and value["mood"] in ("calm", "cross", None, 7)
        and set(value["home"]) == {"street", "number"}
        and isinstance(value["home"]["street"], str)
        and len(value["home"]["street"]) <= 8
        and is_integer(value["home"]["number"])
        and 1 <= len(value["scores"]) <= 4
        and all(map(is_integer, value["scores"]))
    )


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text)


def follower(tokenizer: Tokenizer, guide: Guide, reasoning: Reasoning | None = None) -> GuideFollower:
    compiler = guide_compiler(tokenizer)
    return GuideFollower(compiler.matcher(guide), compiler.vocab_size, tokenizer.end_tokens, reasoning)


def allowed(guided: GuideFollower, tokens: list[int]) -> set[int]:
    guided.follow(tokens)
    return set(np.flatnonzero(guided.allowed()).tolist())
