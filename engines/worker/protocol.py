"""What a daemon and its workers must agree on: mlxd may have been changed on the disk since the daemon was started."""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version

import msgspec

from mlxd.engines.worker.to_daemon import ToDaemon
from mlxd.engines.worker.to_worker import ToWorker

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def protocol() -> str:
    """A digest of the version and of every message, with all that is in it, as this process knows them.

    For a daemon it is to be taken at its start: the version is read from the disk.
    """
    messages = _ADDRESS.sub("", repr([msgspec.inspect.type_info(messages) for messages in (ToDaemon, ToWorker)]))
    return hashlib.blake2b(f"{version('mlxd')} {messages}".encode(), digest_size=8).hexdigest()
