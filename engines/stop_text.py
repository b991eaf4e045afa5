"""Stop strings, matched on decoded text."""

from __future__ import annotations

from mlx_lm.generate import TextStateMachine

from mlxd.engines.types import SamplingParams

_SEARCHING = "searching"


class StopText:
    """Finds the first stop string in text that comes in pieces; a possible beginning of one is held back.

    Text of the first `min_tokens` tokens is shown unread. `matched` is the stop string that was found.
    """

    def __init__(self, stop: tuple[str, ...], min_tokens: int = 0) -> None:
        self._strings = stop
        ends: dict[str, list[tuple[str, str]]] = {str(place): [] for place in range(len(stop))}
        searching = [(text, str(place)) for place, text in enumerate(stop)]
        self._state = TextStateMachine({_SEARCHING: searching, **ends}).make_state(_SEARCHING)
        self._unread_tokens = min_tokens
        self.matched: str | None = None

    @property
    def found(self) -> bool:
        return self.matched is not None

    def count_token(self) -> None:
        """The text that follows is a further token's."""
        self._unread_tokens -= 1

    def feed(self, text: str) -> str:
        """The text that may be shown now: never part of a stop string, nor anything after one."""
        if self.found:
            return ""
        if self._unread_tokens >= 0:
            return text
        self._state, segments = TextStateMachine.split(self._state, text)
        state = self._state[0]
        if state != _SEARCHING:
            self.matched = self._strings[int(state)]
        return "".join(shown for name, shown in segments if name == _SEARCHING)

    def is_in(self, text: str) -> bool:
        """Whether text that is not fed yet has a stop string in it."""
        return self._unread_tokens < 0 and any(stop in text for stop in self._strings)

    def flush(self) -> str:
        """What was held back, for a sequence that ended without a stop string."""
        if self.found:
            return ""
        self._state, held, _ = TextStateMachine.flush(self._state)
        return str(held)


def stop_text(sampling: SamplingParams) -> StopText | None:
    """The stop strings of a request, None if it has none."""
    return StopText(sampling.stop, sampling.min_tokens) if sampling.stop else None
