"""Finds what there is to tell on the feed: listens to all that reports, and looks where nobody tells."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from msgspec import to_builtins

from mlxd.daemon.api.feed_news import PROGRESS_INTERVAL, MemoryNews, ModelNews, PullNews, RequestNews
from mlxd.daemon.api.model_object import decision_object, memory_now, model_now
from mlxd.daemon.api.services import Services
from mlxd.memory.footprint import Reading
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.snapshot import Decision

# Decisions in a snapshot.
SHOWN_DECISIONS = 100


class FeedSource:
    """Publishes every decision and every change of models, requests, downloads and memory, while anybody wants them.

    Those who report only leave a note here; what they changed is looked at once in a turn of the event loop.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._feed = services.feed
        self._models = ModelNews()
        self._requests = RequestNews()
        self._pulls = PullNews()
        self._memory = MemoryNews()
        self._changed_models: set[str] = set()
        self._changed_requests: set[str] = set()
        self._changed_pulls: set[int] = set()
        self._decisions: list[Decision] = []
        self._measured = False
        self._next_look: asyncio.Handle | None = None
        self._next_progress: asyncio.TimerHandle | None = None

    def connect(self) -> None:
        """Become the observer of the daemon's parts, and give the feed its snapshots. Called once."""
        services = self._services
        services.registry.on_models = self._on_models
        services.registry.decisions.on_decision = self._on_decision
        services.running.on_change = self._on_request
        services.pulls.on_change = self._on_pull
        services.guard.on_reading = self._on_reading
        services.feed.snapshot = self.snapshot

    def snapshot(self) -> dict[str, object]:
        """All that events are about, now. What was not told yet is told first, so that events go on from here."""
        self._look_everywhere()
        services = self._services
        return {
            "models": [model_now(services, model) for model in services.registry.models()],
            "requests": to_builtins(services.running.views(services.registry.waiting())),
            "pulls": to_builtins(services.pulls.statuses()),
            "memory": memory_now(services),
            "decisions": [decision_object(decision) for decision in services.registry.last_decisions(SHOWN_DECISIONS)],
        }

    # -- notes -----------------------------------------------------------------------------------------------

    def _on_models(self, names: Collection[str]) -> None:
        if self._feed.is_wanted():
            self._changed_models.update(names)
            self._look_soon()

    def _on_decision(self, decision: Decision) -> None:
        if self._feed.is_wanted():
            self._decisions.append(decision)
            self._look_soon()

    def _on_request(self, request_id: str) -> None:
        if self._feed.is_wanted():
            self._changed_requests.add(request_id)
            self._look_soon()

    def _on_pull(self, number: int) -> None:
        if self._feed.is_wanted():
            self._changed_pulls.add(number)
            self._look_soon()

    def _on_reading(self, _: Reading) -> None:
        """Memory was measured: time to look at what engines do, too."""
        if self._feed.is_wanted():
            self._measured = True
            self._look_soon()

    def _look_soon(self) -> None:
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_soon(self._look)

    # -- what they come to -----------------------------------------------------------------------------------

    def _look(self) -> None:
        self._next_look = None
        if self._measured:
            self._look_everywhere()
        else:
            self._look_at_notes()

    def _look_at_notes(self) -> None:
        """Tell what was reported, and a change of pressure, which nobody should learn late."""
        decisions, self._decisions = self._decisions, []
        for decision in decisions:
            self._feed.publish("decision", decision_object(decision))
        names, self._changed_models = self._changed_models, set()
        for name in sorted(names):
            self._tell_model(name)
        ids, self._changed_requests = self._changed_requests, set()
        if ids:
            self._tell_requests(ids)
        numbers, self._changed_pulls = self._changed_pulls, set()
        for number in sorted(numbers):
            self._tell_pull(number)
        latest = self._services.guard.latest
        if latest is not None and latest.pressure != self._memory.pressure:
            self._tell_memory()

    def _look_everywhere(self) -> None:
        """Tell what was reported, and what differs from what was told although nobody reported it."""
        self._measured = False
        self._look_at_notes()
        for name in sorted(self._services.registry.engines()):
            model = self._model(name)
            if model is not None and self._models.differs(model):
                self._publish_model(model)
        self._tell_requests(None)
        self._tell_memory()

    def _tell_model(self, name: str) -> None:
        model = self._model(name)
        if model is None:
            self._feed.publish("model", self._models.forget(name))
        elif self._models.may_wait(model, self._services.clock()):
            self._changed_models.add(name)
            self._tell_progress_later()
        else:
            self._publish_model(model)

    def _tell_pull(self, number: int) -> None:
        status, now = self._services.pulls.status(number), self._services.clock()
        if status is None:
            self._feed.publish("pull", self._pulls.forget(number))
            return
        pull = to_builtins(status)
        if self._pulls.may_wait(pull, now):
            self._changed_pulls.add(number)
            self._tell_progress_later()
        else:
            self._feed.publish("pull", self._pulls.tell(pull, now))

    def _tell_progress_later(self) -> None:
        if self._next_progress is None:
            self._next_progress = asyncio.get_running_loop().call_later(PROGRESS_INTERVAL, self._look_at_progress)

    def _look_at_progress(self) -> None:
        self._next_progress = None
        self._look_soon()

    def _publish_model(self, model: dict[str, Any]) -> None:
        self._feed.publish("model", self._models.tell(model, self._services.clock()))

    def _model(self, name: str) -> dict[str, Any] | None:
        """The model object, None for a model that is no more."""
        try:
            model = self._services.registry.model(name)
        except ModelRemoved:
            return None
        return model_now(self._services, model)

    def _tell_requests(self, ids: set[str] | None) -> None:
        """Tell what became of these requests, or of all."""
        services = self._services
        views = services.running.views(services.registry.waiting(), ids)
        for ended in self._requests.ended({view.id for view in views}, ids):
            self._feed.publish("request", ended)
        for view in self._requests.moved(views):
            self._feed.publish("request", to_builtins(view))

    def _tell_memory(self) -> None:
        memory = memory_now(self._services)
        if self._memory.differs(memory):
            self._feed.publish("memory", self._memory.tell(memory))
