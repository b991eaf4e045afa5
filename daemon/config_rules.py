"""Rules for single values: from the text or TOML value of a key to its setting, and back.

Every reader raises `Unexpected`, which says what was expected.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

# A secret cannot be guessed from what is shown of it, which is another after each start.
_OWN = secrets.token_bytes(32)
_TO = "\N{EN DASH}"


class Unexpected(ValueError):
    """A value is not what its key takes; `culprit` is the element at fault inside an array, if it may be `shown`."""

    def __init__(self, expected: str, culprit: object = None, *, shown: bool = True) -> None:
        super().__init__(expected)
        self.culprit = culprit
        self.shown = shown


@dataclass(frozen=True, slots=True)
class Base:
    """What relative paths are relative to: `~` is `home`, anything else starts in `folder`."""

    home: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class Rule:
    """How one key is read, taken from an environment variable's text, and written back as in a file."""

    read: Callable[[object, Base], Any]
    from_text: Callable[[str], object] = str
    write: Callable[[Any], Any] = lambda value: value


def boolean() -> Rule:
    """True or false."""

    def read(value: object, _base: Base) -> bool:
        if not isinstance(value, bool):
            raise Unexpected("expected true or false")
        return value

    return Rule(read, _boolean_text)


def _boolean_text(text: str) -> object:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)


def integer(low: int, high: int | None = None) -> Rule:
    """A whole number from `low` to `high`."""
    expected = f"expected an integer {low}{_TO}{high}" if high is not None else f"expected an integer, {low} or more"
    if low < 0:
        expected = f"expected an integer from {low} to {high}"

    def read(value: object, _base: Base) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Unexpected(expected)
        if value < low or (high is not None and value > high):
            raise Unexpected(expected)
        return value

    return Rule(read, _number_text)


def number(low: float, high: float, *, above: bool = False) -> Rule:
    """A number from `low` to `high`, or above `low`."""
    expected = (
        f"expected a number above {low:g}, up to {high:g}" if above else f"expected a number {low:g}{_TO}{high:g}"
    )
    if low < 0:
        expected = f"expected a number from {low:g} to {high:g}"

    def read(value: object, _base: Base) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unexpected(expected)
        if not low <= value <= high or (above and value == low):
            raise Unexpected(expected)
        return float(value)

    return Rule(read, _number_text)


def _number_text(text: str) -> object:
    written = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,30}", written):
        return int(written)
    if re.fullmatch(r"[+-]?[0-9]{1,30}\.[0-9]{1,30}", written):
        return float(written)
    return text


def choice(*names: str) -> Rule:
    """One of these names; case does not matter."""
    expected = "expected " + _or([f'"{name}"' for name in names])

    def read(value: object, _base: Base) -> str:
        if not isinstance(value, str) or value.lower() not in names:
            raise Unexpected(expected)
        return value.lower()

    return Rule(read)


def text(check: Callable[[str], str | None], *, optional: bool = False) -> Rule:
    """A string for which `check` has no complaint; with `optional` an empty one is None."""

    def read(value: object, _base: Base) -> str | None:
        if not isinstance(value, str):
            raise Unexpected("expected a string")
        if optional and not value:
            return None
        if complaint := check(value):
            raise Unexpected(complaint)
        return value

    return Rule(read, write=lambda value: value or "")


def unshown(rule: Rule) -> Rule:
    """The same, of which no message repeats what it got: there may be a secret in it."""

    def read(value: object, base: Base) -> Any:
        try:
            return rule.read(value, base)
        except Unexpected as error:
            raise Unexpected(str(error), shown=False) from None

    return Rule(read, rule.from_text, rule.write)


def secret(check: Callable[[str], str | None]) -> Rule:
    """An optional string that is never shown; what is written for it tells one from another."""
    hidden = unshown(text(check, optional=True))
    return Rule(hidden.read, write=lambda value: "" if value is None else _masked(value))


def _masked(value: str) -> str:
    return f"*** ({hashlib.blake2b(value.encode(), digest_size=4, key=_OWN).hexdigest()})"


def path(*words: str, optional: bool = False) -> Rule:
    """An absolute path without `~`; one of these words as it is; with `optional` an empty string is None."""

    def read(value: object, base: Base) -> Path | str | None:
        if optional and value == "":
            return None
        if value in words:
            return str(value)
        if not isinstance(value, str) or not value.strip():
            raise Unexpected("expected " + _or([f'"{word}"' for word in words] + ["a path"]))
        return absolute(value, base)

    return Rule(read, write=lambda value: "" if value is None else str(value))


def absolute(written: str, base: Base) -> Path:
    """The path that is meant, without `~`; Unexpected if there is none."""
    if not written.isprintable():
        raise Unexpected("expected a path without control characters")
    if written == "~" or written.startswith("~/"):
        return base.home / written[2:].lstrip("/")
    try:
        expanded = Path(written).expanduser()
    except RuntimeError:
        raise Unexpected("expected a path; there is no such user") from None
    return base.folder / expanded


def list_of(item: Rule, *, single: bool = False, repeats: bool = False) -> Rule:
    """An array, with repetitions only if it `repeats`, as a tuple; with `single` also one string alone.

    An environment variable has it as `a,b` or as a TOML array.
    """

    def read(value: object, base: Base) -> tuple[Any, ...]:
        if single and isinstance(value, str):
            value = [value]
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise Unexpected("expected an array of strings")
        found = tuple(_element(item, element, base) for element in value)
        for index, element in enumerate(found):
            if element in found[:index] and not repeats:
                raise Unexpected("expected every entry once", value[index])
        return found

    return Rule(read, _list_text, lambda value: [item.write(element) for element in value])


def _element(item: Rule, element: object, base: Base) -> Any:
    try:
        return item.read(element, base)
    except Unexpected as error:
        raise Unexpected(f"in the array: {error}", element) from None


def _list_text(written: str) -> object:
    if written.strip().startswith("["):
        try:
            return tomli.loads(f"list = {written}")["list"]
        except tomli.TOMLDecodeError:
            return written
    return [part.strip() for part in written.split(",") if part.strip()]


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
