"""A daemon beside a hub, and what tests of downloads ask of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from daemon_process import Api, Daemon, daemon
from hub_server import HubServer

CONFIG = '[models]\nwatch_interval = "never"\n'
"""Nothing but the download itself tells the daemon of its model."""


@contextmanager
def pulling(folder: Path, hub: HubServer, config: str = CONFIG, **options: Any) -> Iterator[Daemon]:
    """A real daemon that downloads from `hub` into `folder`/models."""
    environ = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "hf"), "HF_TOKEN": "hf_secret"}
    models = folder / "models"
    models.mkdir(exist_ok=True)
    with daemon(folder / "daemon", models, config, environ=environ | options.pop("environ", {}), **options) as running:
        yield running


async def begin(api: Api, repo: str, **body: Any) -> dict[str, Any]:
    """The pull as it began."""
    status, pull = await api.call("POST", "/admin/pull", {"repo": repo, **body})
    assert status == 202, pull
    return pull


async def until(api: Api, number: int, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The pull as soon as something holds of it."""
    answer = await api.until("/admin/pulls", lambda pulls: any(holds(p) for p in pulls["data"] if p["id"] == number))
    return next(pull for pull in answer["data"] if pull["id"] == number)


async def ended(api: Api, number: int) -> dict[str, Any]:
    return await until(api, number, lambda pull: pull["ended_at"] is not None)


async def pulled(api: Api, repo: str, **body: Any) -> dict[str, Any]:
    """A pull from its begin to its end."""
    return await ended(api, (await begin(api, repo, **body))["id"])


def children(running: Daemon) -> list[psutil.Process]:
    """The processes of downloads."""
    return [child for child in psutil.Process(running.process.pid).children() if is_download(child)]


def is_download(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return (
            process.is_running()
            and process.status() != psutil.STATUS_ZOMBIE
            and any(sign in " ".join(process.cmdline()) for sign in ("mlxd: pull", "mlxd.daemon.downloads"))
        )
    return False
