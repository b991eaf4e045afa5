"""DELETE /admin/models/{id}: delete a model's files."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web
from msgspec import Struct

from mlxd.daemon.api.caller import usable_model
from mlxd.daemon.api.refusals import InvalidField, ModelNotRemovable, ModelResident
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.disk_thread import DiskStuck
from mlxd.daemon.model_removal import InMemory, NotRemovable, Use
from mlxd.registry.states import State

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
        removal = services.remover.plan(services.registry.spec(name), services.settings)
        freed = await services.remover.remove(name, removal, lambda: _uses(services))
    except InMemory as error:
        raise ModelResident(f"{error.model} is in memory, or on its way; `mlxd unload {error.model}` first") from error
    except (NotRemovable, DiskStuck) as error:
        raise ModelNotRemovable(str(error)) from error
    return web.json_response({"id": name, "freed_bytes": freed})


def _uses(services: Services) -> Iterator[Use]:
    """What models read from: their own folder, an adapter's, a draft's."""
    for model in services.registry.models():
        spec, in_memory = model.spec, model.state not in _AT_REST
        yield from (Use(spec.name, path, in_memory) for path in (spec.path, spec.adapter, spec.draft) if path)
