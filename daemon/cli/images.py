"""Image files that go with a question."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import click

from mlxd.daemon.cli.plain import printable
from mlxd.daemon.config import ConfigError, load_config
from mlxd.daemon.image_formats import FORMATS, media_type_of
from mlxd.daemon.settings import ImagesSettings


def checked_images(_ctx: click.Context, _param: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """The files as data URLs. Raises BadParameter for what cannot be read or is no image."""
    if not paths:
        return ()
    most = _max_bytes()
    return tuple(_data_url(path, most) for path in paths)


def image_url(path: str) -> str:
    """A file as a data URL. Raises BadParameter."""
    return _data_url(path, _max_bytes())


def _data_url(path: str, most: int) -> str:
    shown = printable(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise click.BadParameter(f"{shown} cannot be read: {error.strerror or error}") from error
    if not data:
        raise click.BadParameter(f"{shown} is empty")
    if len(data) > most:
        raise click.BadParameter(f"{shown} has more than {most} bytes (images.max_bytes); make the image smaller")
    kind = media_type_of(data)
    if kind is None:
        raise click.BadParameter(f"{shown} is no image that can be sent; expected a {FORMATS} file")
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _max_bytes() -> int:
    """What this machine's daemon takes; another one may refuse it."""
    try:
        return load_config({}, os.environ, None).settings.images.max_bytes
    except ConfigError:  # whoever needs the configuration says what is wrong with it
        return ImagesSettings().max_bytes
