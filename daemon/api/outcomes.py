"""How requests ended, for those who count them."""

from __future__ import annotations

from mlxd.daemon.api.errors import INTERNAL_ERROR, describe
from mlxd.daemon.api.running import LiveRequest
from mlxd.daemon.traffic import Outcome


def outcome_of(request: LiveRequest, error: BaseException | None) -> Outcome:
    """What a request that is over came to, with what it raised.

    1. One that was ended on purpose was, whatever came of it.
    2. Whoever has all of its answer may leave.
    3. One that has not is gone.
    """
    if request.is_cancelled:
        return Outcome.CANCELLED
    if error is None or request.is_complete:
        return Outcome.OK
    if not isinstance(error, Exception):  # it was cancelled, or closed before its end
        return Outcome.DISCONNECTED
    return Outcome.REFUSED if describe(error, request.id).status < INTERNAL_ERROR else Outcome.FAILED
