"""What still acts when no Python code runs any more, as when native code keeps the interpreter to itself."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import time

# Seconds between two settings of faulthandler's clock, each of which starts a thread.
_RENEWAL = 5.0


class Deadman:
    """Acts when nobody has called `arm` for a while: faulthandler writes where all threads stand, and the system's
    alarm clock ends the process with SIGABRT. Both need neither the interpreter nor its lock. For one thread.

    A fault of native code, such as a segmentation fault, is written to `descriptor` as well.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._libc = ctypes.CDLL(None)
        self._libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self._libc.signal.restype = ctypes.c_void_p
        self._set: tuple[float, float] | None = None
        faulthandler.enable(descriptor)
        # `abort` itself is the handler: one in Python would wait for the interpreter
        self._libc.signal(signal.SIGALRM, ctypes.cast(self._libc.abort, ctypes.c_void_p))

    def arm(self, dump_after: float | None, abort_after: float | None) -> None:
        """Act unless called again within so many seconds, None for never; the dump may be a few seconds late."""
        signal.setitimer(signal.ITIMER_REAL, abort_after or 0.0)
        self._arm_dump(dump_after)

    def close(self) -> None:
        """Do nothing any more; the descriptor may be closed then."""
        self.arm(None, None)
        faulthandler.disable()

    def _arm_dump(self, after: float | None) -> None:
        now = time.monotonic()
        if after is None:
            faulthandler.cancel_dump_traceback_later()
            self._set = None
        elif self._set is None or self._set[0] != after or now - self._set[1] >= _RENEWAL:
            faulthandler.dump_traceback_later(after + _RENEWAL, file=self._descriptor)
            self._set = (after, now)
