"""What the loop on a lane knows of a loaded model and of its scheduler, whatever kind of model it is."""

from __future__ import annotations

from typing import Any, Protocol

from mlxd.engines.step_result import StepResult
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import EngineLimits, ModelInfo, RequestStatus


class LoadedRunner(Protocol):
    """A loaded model of any kind; see ModelRunner."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def close(self) -> None: ...


class LaneScheduler(Protocol):
    """Decides what a model of any kind works at; see Scheduler."""

    @property
    def has_work(self) -> bool: ...

    @property
    def takes_its_time(self) -> bool:
        """Whether the next step may do more than make a token for each of those that run."""

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    def add(self, request: Any, arrived: float) -> None: ...

    def abort(self, request_id: str) -> bool: ...

    def cancel(self, request_id: str) -> StepResult: ...

    def abort_all(self, error: Exception) -> StepResult: ...

    def settle(self) -> None: ...

    def room_made(self, request_id: str) -> None: ...

    def memory_changed(self) -> None: ...

    def retune(self, limits: EngineLimits) -> None: ...

    def trim_prefix_cache(self, max_bytes: int) -> None: ...

    def statuses(self) -> tuple[RequestStatus, ...]: ...

    def step(self) -> StepResult: ...

    @property
    def has_finished(self) -> bool:
        """Whether the last step has left something for `keep_finished`."""

    def keep_finished(self) -> None:
        """Keep the prefixes of what has ended; called when its readers have been told."""
