"""What a model may be called that is put into a folder of models."""

from __future__ import annotations

_PARTS = 2
# a folder name may have 255 bytes, and what makes one works in a folder with a longer name
_LONGEST_PART = 200
_FORBIDDEN = frozenset('\\:*?"<>|')


def name_complaint(name: str) -> str | None:
    """What is wrong with a model's name as a folder, or None."""
    parts = name.split("/")
    if len(parts) > _PARTS or not all(parts):
        return "expected NAME or ORG/NAME"
    if any(part[0] in ".-" for part in parts):
        return "expected a name that begins with neither a dot nor a dash"
    if not name.isprintable() or _FORBIDDEN & set(name) or any(part != part.strip() for part in parts):
        return 'expected a name of printable characters without spaces around it, none of \\ : * ? " < > |'
    if any(len(part.encode()) > _LONGEST_PART for part in parts):
        return f"expected at most {_LONGEST_PART} bytes"
    return None
