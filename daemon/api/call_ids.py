"""Ids for tool calls."""

from __future__ import annotations

import secrets
import string

# Mistral's chat templates take no ids of tool calls but nine letters and digits.
CALL_ID_LENGTH = 9
_ALPHANUMERIC = string.ascii_letters + string.digits


class CallIds:
    """Ids for the tool calls of one answer, each given once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def give(self, own: str | None) -> str:
        """The model's own id for a call, if it has one that was not given yet, else a new one."""
        name = own
        while not name or name in self._given:
            name = "".join(secrets.choice(_ALPHANUMERIC) for _ in range(CALL_ID_LENGTH))
        self._given.add(name)
        return name
