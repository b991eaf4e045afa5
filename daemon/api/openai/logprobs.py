"""Log-probabilities in OpenAI's two forms: entries of a chat's tokens, and the parallel lists of a completion."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from mlxd.daemon.api.openai.objects import ChatLogprobs, TextLogprobs, TokenEntry, TopEntry
from mlxd.engines.types import TokenLogprobs

# What stands for minus infinity, which JSON cannot carry.
LEAST_LOGPROB = -9999.0

TokenBytes = Callable[[int], bytes]


def chat_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> ChatLogprobs:
    """One entry for each token, with the likeliest ones beside it."""
    return ChatLogprobs([_entry(token, token_bytes) for token in tokens])


class TextLogprobsWriter:
    """The lists of one choice, piece by piece: offsets count characters from the start of its text."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def write(self, tokens: Sequence[TokenLogprobs]) -> TextLogprobs:
        """The lists for the next tokens. The token itself is always among the likeliest ones."""
        return TextLogprobs(
            tokens=[token_text(self._token_bytes(token.token)) for token in tokens],
            token_logprobs=[_sayable(token.logprob) for token in tokens],
            top_logprobs=[self._top(token) for token in tokens],
            text_offset=[self._place(token) for token in tokens],
        )

    def _top(self, token: TokenLogprobs) -> dict[str, float]:
        likeliest = (*token.top, (token.token, token.logprob))
        return {token_text(self._token_bytes(number)): _sayable(logprob) for number, logprob in likeliest}

    def _place(self, token: TokenLogprobs) -> int:
        place = self._offset
        self._offset += len(self._decoder.decode(self._token_bytes(token.token)))
        return place


def token_text(data: bytes) -> str:
    """A token's text; one that holds a part of a character is written as its bytes, `bytes:\\xe2\\x82`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _entry(token: TokenLogprobs, token_bytes: TokenBytes) -> TokenEntry:
    data = token_bytes(token.token)
    top = [_top_entry(token_bytes(number), logprob) for number, logprob in token.top]
    return TokenEntry(token_text(data), _sayable(token.logprob), list(data), top)


def _top_entry(data: bytes, logprob: float) -> TopEntry:
    return TopEntry(token_text(data), _sayable(logprob), list(data))


def _sayable(logprob: float) -> float:
    return max(LEAST_LOGPROB, logprob)  # in this order NaN becomes the least, too
