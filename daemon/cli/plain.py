"""Text that is safe to show: what models, files and servers say may hold control sequences."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_KEPT = "\n\t"
# JSON leaves these as they are, and terminals take some for the start of a control sequence.
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def printable(text: str) -> str:
    """The text without control characters, which could move the cursor or change the terminal's state."""
    if text.isprintable():
        return text
    return "".join(char for char in text if char in _KEPT or unicodedata.category(char) not in ("Cc", "Cs"))


def one_line(text: str, width: int) -> str:
    """The text on one line of at most `width` characters."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= width else f"{flat[: max(0, width - 1)]}…"


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON without control characters."""
    return json.dumps(value, indent=indent, ensure_ascii=False).translate(_CONTROLS)
