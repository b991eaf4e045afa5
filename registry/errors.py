"""Registry errors, by what the caller can do about them.

RegistryError
├── ModelRemoved          it is no longer configured
├── ModelNotLoaded        it would need a load, and loading by requests is off
├── ModelTooLarge         it can never fit
├── ModelLoadFailed       the load failed or is backing off; try again at `retry_at`
├── ModelWaitTimeout      it did not become ready in time
├── ResidencyQueueFull    too many requests wait already
├── ModelUnloaded         it was unloaded under the request
├── LoadNotRunning        there is no load to cancel
└── ShuttingDown          the daemon stops

Unknown and ambiguous names are errors of `mlxd.registry.names`.
"""

from __future__ import annotations

from dataclasses import dataclass


class RegistryError(Exception):
    """Base of all errors that leave the registry."""


class ModelRemoved(RegistryError):
    """The model left the configuration, or its folder the disk."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model {model} was removed; GET /v1/models lists those that there are")
        self.model = model


class ModelNotLoaded(RegistryError):
    """The model is not resident and requests may not load models."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model {model} is not loaded and autoload is off; load it with `mlxd load {model}`")
        self.model = model


MAX_LOADED = "residency.max_loaded"


class ModelTooLarge(RegistryError):
    """The model needs more memory, or one place more, than the limit allows, whatever is evicted; bytes."""

    def __init__(self, model: str, needed_bytes: int, limit_bytes: int, limit: str) -> None:
        super().__init__(
            f"model {model} has no place: pinned models take all of {limit}; unpin one, or raise it"
            if limit == MAX_LOADED
            else f"model {model} needs {needed_bytes} bytes but at most {limit_bytes} can be made free ({limit}); "
            "choose a smaller or more quantised model, unpin others, or raise the limits of [memory]"
        )
        self.model = model
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failed load of a model; `retry_at` is wall-clock time in seconds since the epoch."""

    reason: str
    message: str
    attempts: int
    retry_at: float


class ModelLoadFailed(RegistryError):
    """The model could not be loaded; `retry_after` is how many seconds from now a new try is allowed."""

    def __init__(self, model: str, failure: Failure, retry_after: float) -> None:
        super().__init__(f"model {model} could not be loaded ({failure.reason}): {failure.message}")
        self.model = model
        self.failure = failure
        self.retry_after = retry_after


class ModelWaitTimeout(RegistryError):
    """The model was not ready within the time that the request may wait; seconds, `retry_after` until it should be."""

    def __init__(self, model: str, waited: float, retry_after: float) -> None:
        within = f"{round(waited, 2):g} s"
        super().__init__(f"model {model} was not ready within {within}; retry later or allow a longer wait")
        self.model = model
        self.waited = waited
        self.retry_after = retry_after


class ResidencyQueueFull(RegistryError):
    """As many requests wait for models as may; `retry_after` is seconds until one of them should be served."""

    def __init__(self, limit: int, retry_after: float) -> None:
        super().__init__(f"{limit} requests already wait for models (residency.queue_size); retry later")
        self.limit = limit
        self.retry_after = retry_after


class ModelUnloaded(RegistryError):
    """The model was unloaded by force while the request used it."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model {model} was unloaded; send the request again to load it")
        self.model = model


class LoadNotRunning(RegistryError):
    """There is no load in progress to cancel."""

    def __init__(self, model: str, state: str) -> None:
        super().__init__(f"model {model} is {state}, there is no load to cancel")
        self.model = model


class ShuttingDown(RegistryError):
    """The daemon stops and admits nothing new."""

    def __init__(self) -> None:
        super().__init__("the daemon is shutting down; retry when it is back")
