"""What goes between the daemon and the process of a download: one JSON line each. Sizes in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

Reason = Literal[
    "repo_not_found",
    "revision_not_found",
    "gated",
    "forbidden",
    "offline",
    "unreachable",
    "rate_limited",
    "hub_error",
    "unsupported",
    "bad_repository",
    "exists",
    "busy",
    "no_space",
    "disk_full",
    "disk_error",
    "bad_checksum",
    "stalled",
    "crashed",
]
"""Why a download failed."""


class Job(Struct, frozen=True):
    """What to download into the folder `name` below `models_dir`, a folder of models.

    After `stall_s` seconds without a byte it has failed.
    """

    repo: str
    revision: str
    name: str
    models_dir: str
    stall_s: float

    @property
    def folder(self) -> Path:
        """The folder of models."""
        return Path(self.models_dir)

    @property
    def target(self) -> Path:
        """The folder that the model will be in."""
        return self.folder / self.name


class Found(Struct, frozen=True, tag="found"):
    """The revision is this commit, of which so much is on disk already; `free_bytes` are left there if some is not."""

    commit: str
    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    free_bytes: int | None = None


class Progress(Struct, frozen=True, tag="progress"):
    """So much is on disk. `verifying`: no bytes come, those that are there are being read or written out."""

    files_done: int
    bytes_done: int
    verifying: bool


class Done(Struct, frozen=True, tag="done"):
    """The model is in its place, whole."""


class Failed(Struct, frozen=True, tag="failed"):
    """The end of a download that did not succeed; the message says what to do."""

    reason: Reason
    message: str
    needed_bytes: int | None = None
    free_bytes: int | None = None


Message = Found | Progress | Done | Failed


class DownloadFailed(Exception):
    """Carries what a failed download says."""

    def __init__(
        self, reason: Reason, message: str, *, needed_bytes: int | None = None, free_bytes: int | None = None
    ) -> None:
        super().__init__(message)
        self.failed = Failed(reason, message, needed_bytes, free_bytes)
