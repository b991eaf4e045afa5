"""Forms of what is nested in messages between the daemon and a worker. Nothing here imports MLX."""

from __future__ import annotations

from typing import Any

import msgspec


class ErrorForm(msgspec.Struct, array_like=True, frozen=True):
    """An exception; see `error_forms`. `order` is the number of the daemon's own, 0 for one of the worker's."""

    kind: str
    args: list[Any] = []
    fields: dict[str, Any] = {}
    order: int = 0


class ArrayOutline(msgspec.Struct, array_like=True, frozen=True):
    """An array without its numbers."""

    dtype: str
    shape: tuple[int, ...]


class ImageOutline(msgspec.Struct, array_like=True, frozen=True):
    """One image that a worker has prepared. `shared` when its arrays are those of the whole prompt."""

    digest: bytes
    tokens: int
    inputs: dict[str, ArrayOutline]
    shared: bool = False


class ImagesOutline(msgspec.Struct, array_like=True, frozen=True):
    """The images of a prompt, which stay in the worker."""

    token: int
    length: int
    images: list[ImageOutline]
    inputs: dict[str, ArrayOutline]
