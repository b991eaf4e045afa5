"""DELETE /admin/models/{id}: delete a model's files."""

from __future__ import annotations

from pathlib import Path

import structlog
from aiohttp import web
from msgspec import Struct

from mlxd.daemon.api.caller import usable_model
from mlxd.daemon.api.refusals import InvalidField, ModelNotRemovable, ModelResident
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.disk_thread import DiskStuck
from mlxd.daemon.model_removal import NotRemovable
from mlxd.registry.states import State

log = structlog.stdlib.get_logger(__name__)

_AT_REST = frozenset({State.UNLOADED, State.FAILED})


class DeletedModel(Struct, frozen=True):
    """A model whose files are gone, and how many bytes they had."""

    id: str
    freed_bytes: int


def routes() -> list[Route]:
    """This module's part of the API. Paths that end in more than an id come before it."""
    return [Route("DELETE", "/admin/models/{id:.+}", delete, Scope.ADMIN, answer=DeletedModel)]


async def delete(request: web.Request) -> web.Response:
    """Delete a model's files; it is known no longer. Raises ModelResident and ModelNotRemovable."""
    services, asked = services_of(request), request.match_info["id"]
    name = usable_model(request, asked)
    if asked != name:
        raise InvalidField(f"{asked} is another name of {name}; to delete it, name {name} itself", "id")
    try:
        removal = services.remover.plan(services.registry.model(name).spec, services.settings)
        _check_unused(services, removal.folder)
        freed = await services.remover.remove(removal)
    except (NotRemovable, DiskStuck) as error:
        raise ModelNotRemovable(str(error)) from error
    log.info("model.deleted", model=name, path=str(removal.folder), bytes=freed)
    return web.json_response({"id": name, "freed_bytes": freed})


def _check_unused(services: Services, folder: Path) -> None:
    """Nothing may read from the folder: the model itself, adapters on it, models whose draft it is."""
    for model in services.registry.models():
        if folder in (model.spec.path, model.spec.draft) and model.state not in _AT_REST:
            name = model.spec.name
            raise ModelResident(f"{name} is in memory, or on its way; `mlxd unload {name}` first")
