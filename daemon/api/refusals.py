"""What the HTTP edge itself refuses, before or beside a model. Status and code are in the table of `errors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """A request that is refused at the edge: `param` names the field at fault, `headers` go on the answer."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.details = details
        self.headers = headers or {}


class InvalidField(ApiError):
    """The body or a header holds what cannot be served."""


class UnsupportedCapability(ApiError):
    """The model cannot do what is asked for."""


class ImagesQueueFull(ApiError):
    """Images of as many bytes as may wait for memory do."""


class TurnedAway(ApiError):
    """What is no request, or one that is refused before anybody knows who sends it: such calls may come in floods."""


class InvalidApiKey(TurnedAway):
    """There is no key, or a wrong one."""


class Forbidden(ApiError):
    """The key lacks the scope or the model."""


class HostNotAllowed(TurnedAway):
    """The Host header names something that this daemon is not."""


class OriginNotAllowed(TurnedAway):
    """Another site wants to change something, or asks for CORS without being configured."""


class NotFound(ApiError):
    """There is nothing at this path."""


class RequestNotFound(ApiError):
    """No live request has this id."""


class ResponseNotFound(ApiError):
    """No response of this id is kept, or none that the caller may see."""


class PullNotFound(ApiError):
    """No download has this number, or it is forgotten."""


class PullsQueueFull(ApiError):
    """As many downloads wait as may."""


class ModelResident(ApiError):
    """What is to be deleted is in memory, or on its way into it."""


class ModelNotRemovable(ApiError):
    """The model's files are not the daemon's to delete, or the disk does not let it."""


class PeerUnavailable(ApiError):
    """Whoever has the model is a peer that does not answer, or not as it should."""


class MethodNotAllowed(ApiError):
    """The path exists, the method does not."""


class BodyTooLarge(ApiError):
    """The body has more bytes than `server.max_body`."""


class UnsupportedMediaType(ApiError):
    """The body is not JSON."""
