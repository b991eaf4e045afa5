"""A download as commands show it."""

from __future__ import annotations

from msgspec import Struct

from mlxd.daemon.cli.views import percent

ENDED = ("done", "failed", "cancelled")


class PullErrorView(Struct, frozen=True):
    """Why a download failed."""

    reason: str
    message: str = ""


class PullView(Struct, frozen=True):
    """A download; sizes in bytes, durations in seconds."""

    id: int
    repo: str
    state: str
    name: str = ""
    path: str = ""
    commit: str | None = None
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_s: float = 0.0
    eta_s: float | None = None
    error: PullErrorView | None = None

    def is_over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.state in ENDED

    def percent(self) -> int:
        """How much is there, 0 to 100."""
        return percent(self.bytes_done, self.bytes_total)


class PullList(Struct, frozen=True):
    """All downloads."""

    data: tuple[PullView, ...]
