"""Downloads from the Hugging Face hub: begin, list, cancel."""

from __future__ import annotations

from aiohttp import web
from msgspec import Struct

from mlxd.daemon.api.admin_objects import Listed
from mlxd.daemon.api.body import convert, read_object
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.queries import whole_number
from mlxd.daemon.api.refusals import InvalidField, PullNotFound, PullsQueueFull
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.downloads.names import repo_complaint, revision_complaint
from mlxd.daemon.downloads.pull import PullStatus
from mlxd.daemon.downloads.pulls import TooManyPulls
from mlxd.daemon.model_name import name_complaint
from mlxd.registry.names import Resolved

MAIN = "main"

SHOWN = 20
"""Characters of a number that is none which a refusal repeats."""


class PullBody(Struct, forbid_unknown_fields=True):
    """POST /admin/pull. `name` is the model's, by default the repository's; `revision` a branch, a tag or a commit."""

    repo: str
    name: str | None = None
    revision: str | None = None


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route(
            "POST",
            "/admin/pull",
            pull,
            Scope.ADMIN,
            body=PullBody,
            answer=PullStatus,
            also={202: PullStatus},
            example={"repo": "mlx-community/Qwen3-8B-4bit"},
        ),
        Route("GET", "/admin/pulls", list_pulls, Scope.READ, answer=Listed[PullStatus]),
        Route("DELETE", "/admin/pulls/{n}", cancel, Scope.ADMIN, answer=PullStatus),
    ]


async def pull(request: web.Request) -> web.Response:
    """Begin to download a model: 202, or 200 when the same download is under way already."""
    body = convert(await read_object(request), PullBody)
    name, revision = body.name if body.name is not None else body.repo, body.revision or MAIN
    _check(repo_complaint(body.repo), "repo")
    _check(name_complaint(name), "name")
    _check(revision_complaint(revision), "revision")
    services = services_of(request)
    if not services.settings.models.dirs:
        raise InvalidField("models.dirs is empty, so there is no folder to put a model into")
    _check(_taken(services, name), "name")
    try:
        status, is_new = services.pulls.start(body.repo, revision, name)
    except TooManyPulls as error:
        raise PullsQueueFull(str(error)) from error
    return json_answer(status, 202 if is_new else 200)


async def list_pulls(request: web.Request) -> web.Response:
    """The downloads that run or wait, and the last ones that ended."""
    return json_answer(Listed(services_of(request).pulls.statuses()))


async def cancel(request: web.Request) -> web.Response:
    """Cancel a download; what came of it is kept. One that is over stays as it is. Raises PullNotFound."""
    text = request.match_info["n"]
    status = await services_of(request).pulls.cancel(whole_number(text) or 0)
    if status is None:
        raise PullNotFound(f"there is no download {text[:SHOWN]}; GET /admin/pulls lists those that are known")
    return json_answer(status)


def _taken(services: Services, name: str) -> str | None:
    """Why a model of this name would hide another one, or be hidden by it; None if it would not."""
    meaning = services.names.exact.get(name)
    if meaning is not None and meaning != Resolved(name):
        return f"{name} is another name of {meaning.model}; choose another one"
    elsewhere = [entry.name for entry in services.settings.model if entry.path is not None or entry.repo is not None]
    if name in elsewhere or any(name in entry.adapters for entry in services.settings.model):
        return f"{name} is a model of the configuration, which says where it is; choose another name"
    return None


def _check(complaint: str | None, param: str) -> None:
    if complaint is not None:
        raise InvalidField(complaint, param)
