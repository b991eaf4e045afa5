"""What holds for all workers of a daemon."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mlxd.engines.worker.process import Command, worker_command
from mlxd.engines.worker.protocol import protocol


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Made at the daemon's start. `ceiling` gives the bytes that a process may use, `patience` the seconds for which
    one may be silent, None for ever, `measure` the bytes of a process, `has_ended` whether one is gone, or dead and not
    yet waited for; `command` starts one. Images cross in files of the folder `scratch`; each model keeps prompt
    prefixes in a folder of its own in `prefixes`.
    """

    scratch: Path
    prefixes: Path
    ceiling: Callable[[], int | None] = lambda: None
    patience: Callable[[], float | None] = lambda: None
    measure: Callable[[int], int] = lambda _: 0
    has_ended: Callable[[int], bool] = lambda _: False
    log_level: Callable[[], int] = lambda: logging.INFO
    command: Command = worker_command
    protocol: str = field(default_factory=protocol)

    def prefix_folder(self, model: str) -> Path:
        """The folder for a model's prefixes. Names are as long as they like, and differ in case where files do not."""
        return self.prefixes / hashlib.blake2b(model.encode(), digest_size=16).hexdigest()
