"""Reads parameters of a query. What is not there has its default; what is not right raises InvalidField."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from mlxd.daemon.api.refusals import InvalidField

_MAX_DIGITS = 18


def whole_number(text: str) -> int | None:
    """The number that a text is in ASCII digits; None if it is none, or too long for one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def count_of(request: web.Request, name: str, default: int, most: int) -> int:
    """A number from 1 to `most`."""
    text = request.query.get(name)
    if text is None:
        return default
    number = whole_number(text)
    if number is None or not 1 <= number <= most:
        raise InvalidField(f"expected a number from 1 to {most}", name)
    return number


def choice_of(request: web.Request, name: str, choices: Sequence[str]) -> str:
    """One of the choices; the first one is the default."""
    text = request.query.get(name, choices[0])
    if text not in choices:
        raise InvalidField(f"expected one of {', '.join(choices)}", name)
    return text
