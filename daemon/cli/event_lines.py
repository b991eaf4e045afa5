"""What each event of the feed, and each decision, says on one line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.pull_view import PullView
from mlxd.daemon.cli.views import MemoryView, ModelView, RequestView, duration, size
from mlxd.daemon.units import format_bytes


class DecisionView(Struct, frozen=True):
    """A decision; `at` is seconds since the epoch."""

    at: float
    kind: str
    reason: str = ""
    model: str | None = None
    for_model: str | None = None
    for_request: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """What was decided, why, for whom, and the numbers it was made of."""
        what = f"{self.kind} {self.model}" if self.model else self.kind
        whom = " ".join(name for name in (self.for_model, self.for_request) if name)
        numbers = ", ".join(_inputs(self.inputs))
        return f"{what} ({self.reason})" + (f" for {whom}" if whom else "") + (f": {numbers}" if numbers else "")

    def when(self) -> str:
        """The moment in local time."""
        return f"{datetime.fromtimestamp(self.at).astimezone():%Y-%m-%d %H:%M:%S}"


class DecisionList(Struct, frozen=True):
    """Decisions, oldest first."""

    data: tuple[DecisionView, ...]


class _About(Struct, frozen=True):
    id: str
    ended: bool = False
    removed: bool = False


class _AboutPull(Struct, frozen=True):
    id: int
    removed: bool = False


class _Snapshot(Struct, frozen=True):
    memory: MemoryView
    models: tuple[ModelView, ...] = ()
    requests: tuple[RequestView, ...] = ()


class EventLines:
    """Says events in words, and leaves out what says of its object what the last one said."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], str] = {}

    def line(self, name: str, data: Any) -> str | None:
        """What an event says; None when there is nothing new to read, or the event is of a kind not known here.

        Raises CommandFailed for an event that is not as expected.
        """
        match name:
            case "snapshot":
                self._last.clear()
                return _snapshot(view(data, _Snapshot))
            case "decision":
                return view(data.get(name), DecisionView).line()
            case "memory":
                return self._news(name, "", _memory(view(data.get(name), MemoryView)))
            case "pull":
                return self._pull(data.get(name))
            case "model" | "request":
                return self._object(name, data.get(name))
            case _:
                return None

    def _object(self, name: str, shown: Any) -> str | None:
        about = view(shown, _About)
        if about.ended or about.removed:
            self._last.pop((name, about.id), None)
            return f"{about.id} {'ended' if about.ended else 'was removed'}"
        return self._news(name, about.id, _model(shown) if name == "model" else _request(shown))

    def _pull(self, shown: Any) -> str | None:
        about = view(shown, _AboutPull)
        if about.removed:
            self._last.pop(("pull", str(about.id)), None)
            return None
        return self._news("pull", str(about.id), _pull(view(shown, PullView)))

    def _news(self, name: str, subject: str, text: str) -> str | None:
        if self._last.get((name, subject)) == text:
            return None
        self._last[name, subject] = text
        return text


def _snapshot(shown: _Snapshot) -> str:
    resident = sum(model.is_in_memory() for model in shown.models)
    counts = f"{len(shown.models)} models, {resident} in memory; {len(shown.requests)} requests"
    return f"{counts}; memory {_memory(shown.memory)}"


def _memory(memory: MemoryView) -> str:
    return f"{size(memory.footprint_bytes)} of {size(memory.ceiling_bytes)}, pressure {memory.pressure or 'unknown'}"


def _model(shown: Any) -> str:
    model = view(shown, ModelView)
    parts = [f"{model.id} {model.state_text()}"]
    if model.resident_bytes:
        parts.append(size(model.resident_bytes))
    if model.leases or model.queued:
        parts.append(f"in use by {model.leases}, {model.queued} queued")
    if model.error is not None:
        parts.append(f"{model.error.message} ({model.error.reason})")
    return ", ".join(parts)


def _request(shown: Any) -> str:
    request = view(shown, RequestView)
    waits = f", waits for its {request.waiting_for}" if request.waiting_for else ""
    return f"{request.id} {request.state} on {request.model}{waits}"


def _pull(pull: PullView) -> str:
    if pull.error is not None:
        return f"{pull.id} {pull.repo} failed: {pull.error.message} ({pull.error.reason})"
    if pull.is_over() or not pull.bytes_total:
        return f"{pull.id} {pull.repo} {pull.state}"
    tenth = pull.percent() // 10 * 10  # a line for each of many megabytes would hide the others
    return f"{pull.id} {pull.repo} {pull.state} {tenth}% of {format_bytes(pull.bytes_total)}"


def _inputs(inputs: dict[str, Any]) -> Iterator[str]:
    """What a decision was made of, without what is empty."""
    for name, value in inputs.items():
        words = name.replace("_", " ")
        if isinstance(value, dict):
            yield from _inputs(value)
        elif isinstance(value, list):
            yield from _listed(words, value)
        elif isinstance(value, int) and words.endswith(" bytes"):
            yield f"{words.removesuffix(' bytes')} {format_bytes(value)}"
        elif isinstance(value, int | float) and words.endswith(" s"):
            yield f"{words.removesuffix(' s')} {duration(value)}"
        elif value is not None:
            yield f"{words} {value}"


def _listed(words: str, values: list[Any]) -> Iterator[str]:
    if values and all(isinstance(value, str) for value in values):
        yield f"{words} {' '.join(values)}"
    elif values:
        yield f"{len(values)} {words}"
