"""What was told last of models, requests, downloads and memory, and whether that is still so. Plain data, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxd.daemon.api.running import RequestView

Shown = Mapping[str, Any]

# Seconds between two events of a model of which only the load goes on.
PROGRESS_INTERVAL = 0.25
# Bytes by which a figure of memory has to move to be news, or this part of the ceiling if that is more.
MEMORY_GRAIN = 1_000_000
MEMORY_PARTS = 1000

# What is news of memory however little it moved.
_LIMITS = ("pressure", "limit", "ceiling_bytes", "soft_bytes")
# What moves as the bytes of a download come.
_MOVING = frozenset({"files_done", "bytes_done", "bytes_per_s", "eta_s"})
# What follows from the rest of a model, or passes by itself.
_PASSING = frozenset({"load", "unload_at", "loaded_at", "last_used_at", "engine"})


@dataclass(slots=True)
class ModelNews:
    """What was told of each model, and when: seconds on the clock of `now`."""

    _told: dict[str, tuple[Shown, float]] = field(default_factory=dict)

    def differs(self, model: Shown) -> bool:
        """Whether more than the time of day has changed."""
        told = self._told.get(model["id"])
        return told is None or told[0] != _essence(model)

    def may_wait(self, model: Shown, now: float) -> bool:
        """Whether this is one more step of a load, of which one was told a moment ago."""
        told = self._told.get(model["id"])
        return told is not None and now < told[1] + PROGRESS_INTERVAL and not self.differs(model)

    def tell(self, model: Shown, now: float) -> Shown:
        """The model, which is told now."""
        self._told[model["id"]] = (_essence(model), now)
        return model

    def forget(self, name: str) -> Shown:
        """What to tell of a model that is no more."""
        self._told.pop(name, None)
        return {"id": name, "removed": True}


@dataclass(slots=True)
class RequestNews:
    """Where each request was when it was told."""

    _told: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def moved(self, views: list[RequestView]) -> Iterator[RequestView]:
        """The requests that are new or elsewhere, which are told now."""
        for view in views:
            place = (view.state, view.position, view.waiting_for)
            if self._told.get(view.id) != place:
                self._told[view.id] = place
                yield view

    def ended(self, live: set[str], among: set[str] | None = None) -> Iterator[Shown]:
        """What to tell of those that were told and are not live: of all, or `among` some."""
        known = self._told.keys() if among is None else self._told.keys() & among
        for name in sorted(known - live):
            del self._told[name]
            yield {"id": name, "ended": True}


@dataclass(slots=True)
class PullNews:
    """What was told of each download, and when: seconds on the clock of `now`."""

    _told: dict[int, tuple[Shown, float]] = field(default_factory=dict)

    def may_wait(self, pull: Shown, now: float) -> bool:
        """Whether only more bytes have come since one was told a moment ago."""
        told = self._told.get(pull["id"])
        return told is not None and now < told[1] + PROGRESS_INTERVAL and told[0] == _lasting(pull)

    def tell(self, pull: Shown, now: float) -> Shown:
        """The download, which is told now."""
        self._told[pull["id"]] = (_lasting(pull), now)
        return pull

    def forget(self, number: int) -> Shown:
        """What to tell of a download that is forgotten."""
        self._told.pop(number, None)
        return {"id": number, "removed": True}


@dataclass(slots=True)
class MemoryNews:
    """The memory object that was told last."""

    _told: Shown | None = None

    def differs(self, memory: Shown) -> bool:
        """Whether a figure moved so far that people see it, or a limit changed at all."""
        told = self._told
        if told is None or any(told[name] != memory[name] for name in _LIMITS):
            return True
        before, after = dict(_figures(told)), dict(_figures(memory))
        grain = max(MEMORY_GRAIN, memory["ceiling_bytes"] // MEMORY_PARTS)
        return before.keys() != after.keys() or any(abs(after[name] - before[name]) >= grain for name in after)

    def tell(self, memory: Shown) -> Shown:
        """The memory object, which is told now."""
        self._told = memory
        return memory

    @property
    def pressure(self) -> str | None:
        """The pressure that was told, None before anything was."""
        return None if self._told is None else self._told["pressure"]


def _essence(model: Shown) -> Shown:
    rest = {name: value for name, value in model.items() if name not in _PASSING}
    engine = model["engine"]
    return rest if engine is None else rest | {"engine": {**engine, "heartbeat_age_s": None}}


def _lasting(pull: Shown) -> Shown:
    return {name: value for name, value in pull.items() if name not in _MOVING}


def _figures(memory: Shown) -> Iterator[tuple[str, int]]:
    """All bytes of a memory object, each under a name of its own."""
    named = [("", memory), ("parts ", memory["parts"]), *((f"{model['id']} ", model) for model in memory["models"])]
    for prefix, values in named:
        yield from ((prefix + name, value) for name, value in values.items() if isinstance(value, int))
