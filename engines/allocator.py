"""glibc keeps freed weights in its heaps unless told otherwise; elsewhere there is nothing to do."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys

# glibc's malloc.h: mallopt parameter for the size from which an allocation is a mapping of its own
_M_MMAP_THRESHOLD = -3
# Below it, buffers of matrix products (528 kB for each call of OpenBLAS) come and go without a system call. Weights and
# long KV caches are above it, and are given back as they are freed.
_MMAP_THRESHOLD_BYTES = 2**20


class Allocator:
    """The C library's allocator: large blocks become mappings, and `trim` returns what is free."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" and _is_glibc() else None
        if self._libc is not None:
            self._libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)

    def trim(self) -> None:
        """Return free heap pages to the system."""
        if self._libc is not None:
            self._libc.malloc_trim(0)


def _is_glibc() -> bool:
    return hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
