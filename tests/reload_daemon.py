"""A daemon in this process that looks at its folders and reads its configuration only when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mlxd.daemon.app import Daemon
from mlxd.daemon.settings import LoadedConfig, ModelSettings, ModelsSettings, ServerSettings, Settings
from mlxd.memory.probe import SystemProbe


def settings_for(folder: Path, model: tuple[ModelSettings, ...] = (), **models: Any) -> Settings:
    """Settings over the models in a folder, which is not watched."""
    return Settings(
        models=ModelsSettings(dirs=(folder,), watch_interval=None, **models),
        server=ServerSettings(state_dir=folder.parent / "state", drain_timeout=1),
        model=model,
    )


@asynccontextmanager
async def watched(
    folder: Path, *, read: Callable[[], Settings] | None = None, model: tuple[ModelSettings, ...] = (), **models: Any
) -> AsyncIterator[Daemon]:
    """The daemon; `read` gives the settings of a reload, by default those that it has."""
    settings = settings_for(folder, model, **models)
    wanted = read or (lambda: settings)
    daemon = Daemon(settings, SystemProbe(), hf_cache=None, read=lambda: LoadedConfig(wanted(), None, {}))
    daemon.start()
    try:
        yield daemon
    finally:
        assert await daemon.close()
