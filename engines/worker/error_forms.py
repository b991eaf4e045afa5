"""Exceptions that cross: an engine's errors by their names and plain values, and the daemon's own by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlxd.engines import errors
from mlxd.engines.worker.forms import ErrorForm
from mlxd.engines.worker.frames import sayable


class Ordered(errors.RequestError):
    """Stands in a worker for an error of the daemon's, which knows it by its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by order {number}")
        self.number = number


def form_of(error: BaseException) -> ErrorForm:
    """How an error crosses; of one that is no engine's the name and the message."""
    if isinstance(error, Ordered):
        return ErrorForm("", order=error.number)
    if type(error).__name__ not in _kinds():
        return ErrorForm("StepFailed", [sayable(f"{type(error).__name__}: {error}")])
    fields = {name: _plain(value) for name, value in vars(error).items()}
    return ErrorForm(type(error).__name__, [_plain(value) for value in error.args], fields)


def error_of(form: ErrorForm, orders: Mapping[int, Exception]) -> Exception:
    """The error; `orders` has the daemon's own. One of a kind that is not known is a StepFailed."""
    if form.order:
        return orders[form.order]
    kind = _kinds().get(form.kind, errors.StepFailed)
    error = kind.__new__(kind)
    error.args = tuple(form.args)
    vars(error).update(form.fields)
    if isinstance(error, errors.LoadError):
        error.reason = errors.LoadFailure(error.reason)
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
        case None | bool() | int() | float():
            return value
    return sayable(str(value))


def _kinds() -> dict[str, type[errors.EngineError]]:
    return {kind.__name__: kind for kind in _tree(errors.EngineError)}


def _tree(kind: type[errors.EngineError]) -> Iterator[type[errors.EngineError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)
