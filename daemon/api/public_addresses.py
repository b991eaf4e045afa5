"""Which addresses are of the public internet, and a resolver that gives no others for hosts nobody named."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Iterator

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Networks of IPv6 that carry addresses of IPv4 in their last 32 bits: translated ones, and an older form.
_CARRIERS = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
_LAST_32_BITS = 0xFFFFFFFF


class NotPublic(OSError):
    """A host has addresses inside some network alone."""


def plain_host(host: str) -> str:
    """A host as it is compared: without case, and without the dot that may end a name."""
    return host.lower().rstrip(".")


def is_public(text: str) -> bool:
    """Whether an IP address is one of the public internet, and so is each that it carries inside."""
    address = ipaddress.ip_address(text)
    return all(each.is_global and not each.is_multicast for each in (address, *_inside(address)))


def _inside(address: Address) -> Iterator[Address]:
    if isinstance(address, ipaddress.IPv4Address):
        return
    if any(address in network for network in _CARRIERS):
        yield ipaddress.IPv4Address(int(address) & _LAST_32_BITS)
    for carried in (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())):
        if carried is not None:
            yield carried


class PublicResolver(AbstractResolver):
    """Gives the public addresses of a host, and all of those of the `named` ones. What it gives is connected to, so
    that no later look-up can lead elsewhere.
    """

    def __init__(self, named: Collection[str], resolver: Callable[[], AbstractResolver] = DefaultResolver) -> None:
        self._named = frozenset(map(plain_host, named))
        self._resolver = resolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host. Raises NotPublic when none is left, and OSError when it has none."""
        try:
            found = await self._resolver.resolve(host, port, family)
        except UnicodeError as error:  # labels that no name may have
            raise OSError(f"no name: {error}") from error
        if plain_host(host) in self._named:
            return found
        public = [each for each in found if is_public(each["host"])]
        if not public:
            raise NotPublic(host)
        return public

    async def close(self) -> None:
        """Release what looks hosts up."""
        await self._resolver.close()
