"""Exceptions that cross: an engine's errors by their names and plain values, and the daemon's own by number."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any

from mlxd.engines import errors
from mlxd.engines.worker.forms import ErrorForm
from mlxd.engines.worker.frames import sayable

# Integers that a message can hold.
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1


class Ordered(errors.RequestError):
    """Stands in a worker for an error of the daemon's, which knows it by its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by order {number}")
        self.number = number


def form_of(error: BaseException) -> ErrorForm:
    """How an error crosses; of one that is no engine's the name and the message."""
    if isinstance(error, Ordered):
        return ErrorForm("", order=error.number)
    kind = next((kind.__name__ for kind in type(error).__mro__ if _kinds().get(kind.__name__) is kind), None)
    if kind is None:
        return ErrorForm("StepFailed", [f"{type(error).__name__}: {_said(error)}"])
    fields = {name: _plain(value) for name, value in vars(error).items()}
    return ErrorForm(kind, [_plain(value) for value in error.args], fields)


def error_of(form: ErrorForm) -> Exception:
    """The worker's error; a StepFailed for one of a kind that is not known."""
    kind = _kinds().get(form.kind, errors.StepFailed)
    error = kind.__new__(kind)
    error.args = tuple(form.args)
    vars(error).update(form.fields)
    if isinstance(error, errors.LoadError):
        error.reason = errors.LoadFailure(error.reason)
    if isinstance(error, errors.EngineDead):
        error.suspects = tuple(error.suspects)
    return error


def _plain(value: Any) -> Any:
    """With nothing in it that cannot cross."""
    match value:
        case str():
            return sayable(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {sayable(str(key)): _plain(each) for key, each in value.items()}
        case None | bool():
            return value
        case Integral():
            number = int(value)
            return number if _LEAST_INT <= number <= _MOST_INT else hex(number)
        case Real():
            return float(value)
    return _said(value)


def _said(value: object) -> str:
    try:
        return sayable(str(value))
    # What an object says of itself is its own program.
    except Exception as error:  # noqa: BLE001
        return f"{type(value).__name__} that says {type(error).__name__}"


def _kinds() -> dict[str, type[errors.EngineError]]:
    """The classes of `errors`, which both sides have."""
    return {kind.__name__: kind for kind in _tree(errors.EngineError) if kind.__module__ == errors.__name__}


def _tree(kind: type[errors.EngineError]) -> Iterator[type[errors.EngineError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)
