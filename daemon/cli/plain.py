"""Text that is safe to show: what models, files and servers say may hold control sequences."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"


def printable(text: str) -> str:
    """The text without control characters, which could move the cursor or change the terminal's state."""
    if text.isprintable():
        return text
    return "".join(char for char in text if char in _KEPT or unicodedata.category(char) not in ("Cc", "Cs"))


def one_line(text: str, width: int) -> str:
    """The text on one line of at most `width` characters."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= width else f"{flat[: max(0, width - 1)]}…"
