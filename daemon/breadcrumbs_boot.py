"""What tells one start of the machine from the next."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

LINUX_FILE = Path("/proc/sys/kernel/random/boot_id")
_LONGEST = 256


def boot_id() -> str | None:
    """A name that the machine has until it is started again, None when it does not say."""
    if sys.platform == "darwin":
        return darwin_boot_id(ctypes.CDLL("/usr/lib/libSystem.B.dylib"))
    return linux_boot_id()


def linux_boot_id(path: Path = LINUX_FILE) -> str | None:
    """What the kernel drew at its start."""
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def darwin_boot_id(library: Any) -> str | None:
    """The sysctl kern.bootsessionuuid; `library` is any object with macOS's `sysctlbyname`."""
    text = ctypes.create_string_buffer(_LONGEST)
    size = ctypes.c_size_t(_LONGEST)
    if library.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return text.value.decode("ascii", "replace") or None
