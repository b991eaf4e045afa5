"""Tokens to text, as mlx-lm's streaming detokenizers make it."""

from __future__ import annotations

from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Request


class TokenText:
    """Decodes one sequence's tokens. Ids that are no tokens, and end tokens that do not end it, have no text."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer()
        self._size = tokenizer.size
        self._silent = tokenizer.end_tokens if request.sampling.ignore_eos else frozenset()
        if request.continues_text:
            # A detokenizer drops the first space of its text; after the prompt's last token it is not first.
            self.push(request.prompt[-1])

    def push(self, token: int) -> str:
        """Text that became complete with this token."""
        if token in self._silent or (token >= self._size and not self._tokenizer.token_bytes(token)):
            return ""
        self._detokenizer.add_token(token)
        return self._detokenizer.last_segment

    def finish(self) -> str:
        """The text left at the end of the sequence."""
        self._detokenizer.finalize()
        return self._detokenizer.last_segment
