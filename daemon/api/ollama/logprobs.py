"""Log-probabilities as Ollama shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlxd.daemon.api.ollama.objects import Logprob, TokenLogprob
from mlxd.engines.types import TokenLogprobs

# What stands for minus infinity, which JSON cannot carry.
LEAST_LOGPROB = -9999.0


def logprobs_of(tokens: Sequence[TokenLogprobs], token_bytes: Callable[[int], bytes]) -> list[Logprob]:
    """One entry for each token, with the likeliest ones beside it. A part of a character is shown as U+FFFD."""
    return [
        Logprob(
            _text(token_bytes(token.token)),
            _sayable(token.logprob),
            list(token_bytes(token.token)),
            [_entry(token_bytes(number), logprob) for number, logprob in token.top],
        )
        for token in tokens
    ]


def _entry(data: bytes, logprob: float) -> TokenLogprob:
    return TokenLogprob(_text(data), _sayable(logprob), list(data))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _sayable(logprob: float) -> float:
    return max(LEAST_LOGPROB, logprob)  # in this order NaN becomes the least, too
