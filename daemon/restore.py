"""What a start loads by itself: the models of the configuration, and those that the last run had in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

import structlog

from mlxd.daemon.breadcrumbs import Breadcrumbs
from mlxd.daemon.breadcrumbs_record import ResidentModel
from mlxd.daemon.live import Live
from mlxd.registry.errors import ModelRemoved, RegistryError
from mlxd.registry.explain import Verdict
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.states import RESIDENT, State

log = structlog.stdlib.get_logger(__name__)

PATIENCE = 1800.0
"""Seconds after which a start restores no more."""


@dataclass(slots=True)
class FirstLoads:
    """Loads `models.preload`, then with `models.restore` what was in memory, without those that are suspect.

    `preload` loads models by their names and waits for none; `measure` has the memory measured anew.
    """

    live: Live
    registry: ModelRegistry
    crumbs: Breadcrumbs
    preload: Callable[[Sequence[str]], Awaitable[None]]
    measure: Callable[[], object]
    patience: float = PATIENCE
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _skipped: set[str] = field(default_factory=set, init=False)

    def on_models(self, _: Collection[str]) -> None:
        """Some models changed."""
        self._changed.set()

    async def run(self) -> None:
        """Returns when all is loaded that will be."""
        names = self.live.settings.models.preload
        await self.preload([name for name in names if not self._skips(self._model(name))])
        if self.live.settings.models.restore and self.crumbs.to_restore:
            await self._restore()
        if not self.registry.closing:
            self.crumbs.settled()

    def _model(self, name: str) -> str:
        try:
            return self.live.names.resolve(name, "").model
        except RegistryError:  # whoever loads it says what is wrong
            return name

    def _skips(self, model: str) -> bool:
        """Whether a start has to do without a model; the first time it is told."""
        suspect = self.crumbs.suspect(model)
        if suspect is None:
            return False
        if model not in self._skipped:
            self._skipped.add(model)
            known = {
                "was": suspect.was,
                "unclean_ends": suspect.ends,
                "machine_restarted": suspect.machine_restarted,
                "seen_at": suspect.at,
                "fingerprints": list(suspect.fingerprints),
            }
            log.warning("preload.skipped", model=model, **known)
            self.registry.decisions.add("refuse", "unclean_end", model=model, inputs=known)
        return True

    async def _restore(self) -> None:
        left = deque(model.name for model in self._in_order() if self._is_as_it_was(model))
        restored: list[str] = []
        try:
            async with asyncio.timeout(self.patience):
                while left and await self._bring_back(left[0], restored):
                    left.popleft()
        except TimeoutError:
            log.warning("restore.slow", model=left[0], seconds=self.patience)
        log.info("restore.done", models=restored, left=list(left))

    async def _bring_back(self, name: str, restored: list[str]) -> bool:
        """Load one of them if need be. False when nothing may be loaded any more, or not without making room."""
        await self._nothing_loads()
        if self.registry.closing:
            return False
        if self._is_here(name) or self._skips(name):
            return True
        self.measure()
        # nothing may happen between the answer and the load
        plan = self.registry.explain(name, operator=True)
        inputs = {"needed_bytes": plan.needed_bytes, "free_bytes": plan.free_bytes}
        if plan.verdict is not Verdict.LOADS:
            log.info("restore.no_room", model=name, verdict=plan.verdict, **inputs)
            return False
        self.registry.decisions.add("load", "restored", model=name, inputs=inputs)
        try:
            await self.registry.load(name)
            restored.append(name)
        except RegistryError as error:
            log.warning("model.load_refused", model=name, message=str(error))
        return True

    async def _nothing_loads(self) -> None:
        """Wait until no model is on its way: only then can be told what there is room for."""
        while self.registry.names(State.QUEUED, State.LOADING):
            self._changed.clear()
            await self._changed.wait()

    def _is_here(self, name: str) -> bool:
        try:
            return self.registry.model(name).state in RESIDENT
        except ModelRemoved:
            return True

    def _in_order(self) -> list[ResidentModel]:
        """Those that the configuration names first, then the last used."""
        preload = set(map(self._model, self.live.settings.models.preload))
        pinned = {spec.name for spec in self.live.catalog.specs if spec.pinned}
        return sorted(self.crumbs.to_restore, key=lambda model: model.name not in preload | pinned)

    def _is_as_it_was(self, model: ResidentModel) -> bool:
        try:
            spec = self.registry.spec(model.name)
        except ModelRemoved:
            return False
        return spec.kind == model.kind and spec.problem is None
