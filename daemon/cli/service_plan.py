"""What `mlxd service install` tells the service manager: the configuration checked as the service will see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from mlxd.daemon.cli.address import listening_url
from mlxd.daemon.cli.failures import BadConfig
from mlxd.daemon.config import ConfigError
from mlxd.daemon.config_source import ConfigSource
from mlxd.daemon.service.plan import ServicePlan, kept_variables, lost_variables, own_program, wait_for_stop
from mlxd.daemon.settings import ServerSettings
from mlxd.daemon.units import Size


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan, where the daemon will answer (None for any free port), and what to tell about both."""

    plan: ServicePlan
    url: str | None
    notes: tuple[str, ...]


def plan_of(config: Path | None, environ: Mapping[str, str], memory_max: Size | None) -> Planned:
    """Plan a service with this file, else with the one in $MLXD_CONFIG, else with what the daemon finds at each start.

    Raises BadConfig for what the daemon would refuse at its start.
    """
    kept = kept_variables(environ)
    seen = {name: environ[name] for name in ("HOME", "PATH") if name in environ} | kept
    named = config or (Path(environ["MLXD_CONFIG"]) if environ.get("MLXD_CONFIG") else None)
    try:
        loaded = ConfigSource({}, seen, named).load_checked()
    except ConfigError as error:
        raise BadConfig(str(error)) from error
    plan = ServicePlan(
        own_program(),
        wait_for_stop(loaded.settings),
        config=loaded.path if named is not None else None,
        environ=kept,
        memory_max=memory_max,
        has_log_file=loaded.settings.log.file is not None,
    )
    lost = lost_variables(environ)
    notes = [f"the service does not get {name} of this shell; put it into the configuration file" for name in lost]
    return Planned(plan, _url(loaded.settings.server), tuple(notes))


def _url(server: ServerSettings) -> str | None:
    try:
        return listening_url(server)
    except click.UsageError:  # the port is chosen when it starts
        return None
