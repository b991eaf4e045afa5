"""One download as people are told of it, and how fast it is."""

from __future__ import annotations

from collections import deque
from typing import Literal

from msgspec import Struct, structs

from mlxd.daemon.downloads.messages import Failed, Found, Job, Progress, Reason

State = Literal["queued", "resolving", "downloading", "verifying", "done", "failed", "cancelled"]

ENDED = frozenset({"done", "failed", "cancelled"})
# Seconds over which the rate is taken.
RATE_SPAN = 10.0

_LEAST_SPAN = 0.5


class PullError(Struct, frozen=True):
    """Why it failed. With `no_space` it tells what would be needed and what is free, in bytes."""

    reason: Reason
    message: str
    needed_bytes: int | None = None
    free_bytes: int | None = None


class PullStatus(Struct, frozen=True, kw_only=True):
    """A download; sizes in bytes, times in seconds since the epoch."""

    id: int
    repo: str
    revision: str
    commit: str | None = None
    name: str
    path: str
    state: State = "queued"
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_s: float = 0.0
    eta_s: float | None = None
    started_at: float
    ended_at: float | None = None
    error: PullError | None = None


class Pull:
    """What becomes of one download. `status` is replaced whole with each change; `now` is monotonic, in seconds."""

    def __init__(self, number: int, job: Job, started_at: float) -> None:
        self.job = job
        self.status = PullStatus(
            id=number,
            repo=job.repo,
            revision=job.revision,
            name=job.name,
            path=str(job.target),
            started_at=started_at,
        )
        self._marks: deque[tuple[float, int]] = deque()

    @property
    def is_over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.status.state in ENDED

    @property
    def bytes_left(self) -> int:
        """How much is still to come, as far as that is known."""
        return 0 if self.is_over else self.status.bytes_total - self.status.bytes_done

    def begin(self) -> None:
        """It is its turn."""
        self._change(state="resolving")

    def found(self, found: Found, now: float) -> None:
        """It is known what there is to download."""
        self._marks.append((now, found.bytes_done))
        self._change(
            state="downloading",
            commit=found.commit,
            files_done=found.files_done,
            files_total=found.files_total,
            bytes_done=found.bytes_done,
            bytes_total=found.bytes_total,
        )

    def moved(self, progress: Progress, now: float) -> None:
        """So much is there by now."""
        rate = self._rate(now, progress.bytes_done)
        left = self.status.bytes_total - progress.bytes_done
        self._change(
            state="verifying" if progress.verifying else "downloading",
            files_done=progress.files_done,
            bytes_done=progress.bytes_done,
            bytes_per_s=rate,
            eta_s=round(left / rate, 1) if rate else None,
        )

    def done(self, at: float) -> None:
        """The model is there."""
        whole = self.status
        self._end("done", at, files_done=whole.files_total, bytes_done=whole.bytes_total)

    def failed(self, failed: Failed, at: float) -> None:
        """It has ended, with a reason."""
        self._end("failed", at, error=PullError(*structs.astuple(failed)))

    def cancelled(self, at: float) -> None:
        """It was ended on purpose."""
        self._end("cancelled", at)

    def _end(self, state: State, at: float, **more: object) -> None:
        self._change(state=state, ended_at=at, bytes_per_s=0.0, eta_s=None, **more)

    def _change(self, **changes: object) -> None:
        self.status = structs.replace(self.status, **changes)

    def _rate(self, now: float, count: int) -> float:
        self._marks.append((now, count))
        while len(self._marks) > 1 and now - self._marks[0][0] > RATE_SPAN:
            self._marks.popleft()
        since, before = self._marks[0]
        return round(max(0, count - before) / (now - since), 1) if now - since >= _LEAST_SPAN else 0.0
