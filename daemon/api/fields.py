"""Which fields of a body are served, which are passed over by design, and which are refused."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mlxd.daemon.api.refusals import InvalidField

Harmless = tuple[Any, ...]

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The fields of one call. `known` are those of its body type, of which `ignored` change nothing by design.

    `refused` has, for each field that is not there, the values beside null with which it changes nothing.
    """

    known: Collection[str]
    ignored: frozenset[str] = frozenset()
    refused: Mapping[str, Harmless] = field(default_factory=dict)

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise InvalidField for a field that asks for what is not there, and for one that nobody knows."""
        for name, value in body.items():
            if name in self.known:
                continue
            if name not in self.refused:
                raise InvalidField(_unknown(name, (*self.known, *self.refused)), name[:_SHOWN])
            if value is not None and not any(_same(value, harmless) for harmless in self.refused[name]):
                raise InvalidField(_unsupported(name, self.refused[name]), name)

    def passed_over(self, body: Mapping[str, Any]) -> Iterator[str]:
        """The fields of `body` that change nothing."""
        return (name for name, value in body.items() if name in self.ignored and value is not None)


def _same(value: object, harmless: object) -> bool:
    return type(value) is type(harmless) and value == harmless


def _unsupported(name: str, harmless: Harmless) -> str:
    if not harmless:
        return f"{name} is not supported here; leave it out"
    return f"{name} is not supported here; leave it out or send {msgspec.json.encode(harmless[0]).decode()}"


def _unknown(name: str, known: Collection[str]) -> str:
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    near = difflib.get_close_matches(name.lower()[:_SHOWN], known, n=1)
    return f"{shown} is not a field of this request; " + (f"did you mean {near[0]}?" if near else "leave it out")
