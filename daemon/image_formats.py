"""The image files that are taken, told by their first bytes."""

from __future__ import annotations

MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
FORMATS = "PNG, JPEG, WebP or GIF"

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def media_type_of(data: bytes) -> str | None:
    """What kind of image a file is by its first bytes, one of MEDIA_TYPES; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES if data.startswith(signature)), None)
