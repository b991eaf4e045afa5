"""The rounds of `mlxd doctor`: every group in turn, each within its bound. Nothing is changed and no model loaded."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from mlxd.daemon.blas import BlasPlan
from mlxd.daemon.catalog import survey
from mlxd.daemon.cli.doctor_address import GROUP as ADDRESS
from mlxd.daemon.cli.doctor_address import Place, address_checks, look_at
from mlxd.daemon.cli.doctor_checks import Check, Group, begin
from mlxd.daemon.cli.doctor_config import GROUP as CONFIG
from mlxd.daemon.cli.doctor_config import Configured, read_config
from mlxd.daemon.cli.doctor_machine import GROUP as MACHINE
from mlxd.daemon.cli.doctor_machine import machine_checks, read_swap
from mlxd.daemon.cli.doctor_memory import GROUP as MEMORY
from mlxd.daemon.cli.doctor_memory import Room, measure, memory_checks, room_for_models
from mlxd.daemon.cli.doctor_mlx import GROUP as MLX
from mlxd.daemon.cli.doctor_mlx import TRIAL_SECONDS, Trial, blas_plan, mlx_checks, trial_environ, try_libraries
from mlxd.daemon.cli.doctor_models import GROUP as MODELS
from mlxd.daemon.cli.doctor_models import model_checks
from mlxd.daemon.cli.doctor_service import GROUP as SERVICE
from mlxd.daemon.cli.doctor_service import service_checks
from mlxd.daemon.cli.doctor_state import GROUP as STATE
from mlxd.daemon.cli.doctor_state import state_checks
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.probe_choice import hf_cache_dir, make_probe
from mlxd.daemon.service.choice import manager_of
from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.state import ServiceManager
from mlxd.daemon.service.tools import run_tool
from mlxd.daemon.settings import LoadedConfig, Settings

GROUP_SECONDS = 30.0
"""What one step may take: beyond that, a disk or a network does not answer."""

_ORDER = tuple(group.name for group in (MACHINE, MLX, MEMORY, CONFIG, ADDRESS, STATE, SERVICE, MODELS))
_NO_PLAN: BlasPlan | ConfigError = BlasPlan(None, "it was not looked for")

_Found = TypeVar("_Found")


def examine(file: Path | None, environ: Mapping[str, str]) -> list[Check]:
    """Look at everything that `mlxd serve --config file` needs, and at the daemon that runs, if one does.

    What cannot be looked at without what failed before is left out.
    """
    rounds = Rounds()
    configured = rounds.get(CONFIG, partial(read_config, file, environ), Configured(None, ()))
    loaded = configured.loaded
    rounds.checks += configured.checks
    # the slowest part, so it runs beside the others
    plan = rounds.get(MLX, partial(blas_plan, loaded.settings if loaded is not None else Settings()), _NO_PLAN)
    libraries = begin(partial(try_libraries, trial_environ(plan)))
    probe = make_probe(environ)
    rounds.add(MACHINE, lambda: machine_checks(probe.sample(), read_swap(), sys.platform, platform.machine()))
    place = _address(rounds, loaded) if loaded is not None else Place(None)
    stuck = Trial(None, "it cannot be ended")
    trial = rounds.get(MLX, libraries.result, stuck, seconds=TRIAL_SECONDS + GROUP_SECONDS)
    rounds.add(MLX, partial(mlx_checks, trial, plan))
    measured = measure(probe, trial.report, place.running)
    room = room_for_models(loaded, measured) if loaded is not None else None
    rounds.add(MEMORY, partial(memory_checks, loaded, measured, room, place.running))
    rounds.add(SERVICE, lambda: service_checks(_manager(environ)))
    if loaded is not None:
        rounds.add(STATE, partial(state_checks, loaded.settings.server.state_dir, place.running))
        fitting = room if isinstance(room, Room) else None
        rounds.add(MODELS, partial(_models, loaded, hf_cache_dir(environ), fitting))
    return sorted(rounds.checks, key=lambda check: _ORDER.index(check.group))


class Rounds:
    """Collects checks, and notes what took longer than `seconds`."""

    def __init__(self, seconds: float = GROUP_SECONDS) -> None:
        self.checks: list[Check] = []
        self._seconds = seconds

    def get(
        self, group: Group, call: Callable[[], _Found], otherwise: _Found, *, seconds: float | None = None
    ) -> _Found:
        """What the call gives or raises; `otherwise` when it takes longer than `seconds`, which is noted."""
        limit = self._seconds if seconds is None else seconds
        try:
            return begin(call).result(limit)
        except TimeoutError:
            found = f"it did not come to an end within {limit:g} s"
            advice = "look for a disk or a network mount that does not answer"
            self.checks.append(group.problem("time", found, advice))
            return otherwise

    def add(self, group: Group, call: Callable[[], list[Check]]) -> None:
        """Add the checks of a group."""
        self.checks += self.get(group, call, [])


def _address(rounds: Rounds, loaded: LoadedConfig) -> Place:
    place = rounds.get(ADDRESS, partial(look_at, loaded.settings.server), None)
    if place is None:
        return Place(None)
    rounds.add(ADDRESS, partial(address_checks, loaded, place))
    return place


def _manager(environ: Mapping[str, str]) -> ServiceManager | None:
    try:
        return manager_of(sys.platform, environ, os.getuid(), run_tool)
    except ServiceFailed:  # of another system; the daemon itself does not need one
        return None


def _models(loaded: LoadedConfig, hf_cache: Path | None, room: Room | None) -> list[Check]:
    return model_checks(loaded, survey(loaded.settings, hf_cache), room)
