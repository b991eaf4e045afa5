"""Reads the images of a request: decodes what it carries and fetches what it names, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from mlxd.daemon.api.image_data import decode_inline, inline_size
from mlxd.daemon.api.image_fetch import fetching
from mlxd.daemon.api.image_room import Claim
from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.running import LiveRequest
from mlxd.daemon.api.sent_images import SentImage
from mlxd.daemon.api.services import Services
from mlxd.daemon.settings import ImagesSettings, Settings
from mlxd.engines.errors import MemoryWaitTimeout
from mlxd.engines.prompt_images import ImageInput
from mlxd.registry.model_kind import VISION_PACKAGE, installed_packages
from mlxd.registry.spec import ModelKind, ModelSpec

Images = Sequence[SentImage]

# Bytes that are decoded in a moment; more is decoded beside the event loop.
_QUICK = 65_536


def check_takes_images(spec: ModelSpec, param: str) -> None:
    """Raise UnsupportedCapability for a model that takes no images; `param` is the first one's place.

    An embedding model is left to those who know that it generates no text.
    """
    if not spec.takes_images and spec.kind is not ModelKind.EMBEDDING:
        raise UnsupportedCapability(f"{param}: {_why_not(spec)}", param)


def _why_not(spec: ModelSpec) -> str:
    if spec.kind is not ModelKind.VISION:
        return f"model {spec.name} takes text only; leave images out, or name a vision model"
    if VISION_PACKAGE not in installed_packages():
        return f"model {spec.name} takes images only with mlx-vlm: pip install 'mlxd[vision]', and restart the daemon"
    return f"mlx-vlm does not know the architecture of model {spec.name}, so that it takes text only; leave images out"


@dataclass(frozen=True, slots=True)
class TakenImages:
    """The files of a request's images, and the memory that is held for them: that of what is made of them, later."""

    files: Sequence[ImageInput] = ()
    claim: Claim = field(default_factory=Claim)


async def take_images(
    services: Services,
    settings: Settings,
    images: Images,
    *,
    live: LiveRequest,
    held: AsyncExitStack,
    max_wait: float | None,
) -> TakenImages:
    """Read the images of a request, once there is memory for them, which `held` gives back. It waits for that at most
    `max_wait` seconds, or as long as for a model.

    Raises InvalidField that names the place at fault, ImagesQueueFull, and MemoryWaitTimeout.
    """
    if not images:
        return TakenImages()
    _check_count(images, settings.images.max_count)
    patience = settings.residency.queue_timeout if max_wait is None else max_wait
    with live.waiting_for("memory"):
        claim = await _room(services, held, images, settings.images, patience)
    with live.waiting_for(None):
        files = await _read(services, images, settings.images)
    claim.resize(sum(len(image.data) for image in files))
    return TakenImages(files, claim)


def _check_count(images: Images, most: int) -> None:
    if len(images) > most:
        param = images[most].param
        message = f"at most {most} images are taken in one request (images.max_count); send fewer"
        raise InvalidField(f"{param}: {message}", param)


async def _room(
    services: Services, held: AsyncExitStack, images: Images, settings: ImagesSettings, patience: float
) -> Claim:
    needed = sum(settings.max_bytes if image.is_remote else inline_size(image) for image in images)
    scope = asyncio.timeout(patience)
    try:
        async with scope:
            return await held.enter_async_context(services.image_room.hold(needed))
    except TimeoutError:
        if not scope.expired():
            raise
        raise MemoryWaitTimeout("", needed, services.image_room.free, patience) from None


async def _read(services: Services, images: Images, settings: ImagesSettings) -> list[ImageInput]:
    inline = {number: image for number, image in enumerate(images) if not image.is_remote}
    remote = {number: image for number, image in enumerate(images) if image.is_remote}
    files = await _decoded(services, inline, settings)
    if remote:
        files |= await _fetched(remote, settings)
    return [ImageInput(files[number], image.param, settings.max_pixels) for number, image in enumerate(images)]


async def _decoded(services: Services, images: Mapping[int, SentImage], settings: ImagesSettings) -> dict[int, bytes]:
    def decode() -> dict[int, bytes]:
        return {number: decode_inline(image, settings.max_bytes) for number, image in images.items()}

    if sum(map(inline_size, images.values())) <= _QUICK:
        return decode()
    async with services.bodies:
        return await asyncio.to_thread(decode)


async def _fetched(images: Mapping[int, SentImage], settings: ImagesSettings) -> dict[int, bytes]:
    """All at the same time; the first that fails ends the others."""
    async with fetching(settings.remote_hosts, settings.max_bytes) as fetcher:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    number: group.create_task(fetcher.fetch(image.take(), image.param))
                    for number, image in images.items()
                }
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
    return {number: task.result() for number, task in tasks.items()}
