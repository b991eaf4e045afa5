"""What macOS tells of sleep: IOKit's power notifications, received on a thread with a run loop of its own."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlxd.daemon.sleep import Allow, SystemPower

# <IOKit/IOMessage.h>
CAN_SLEEP = 0xE0000270
WILL_SLEEP = 0xE0000280
WILL_NOT_SLEEP = 0xE0000290
POWERED_ON = 0xE0000300

# Seconds in which the run loop begins, and ends.
_PATIENCE = 1.0

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class Frameworks:
    """The two libraries, or anything with their functions, and the run loop mode to listen in."""

    iokit: Any
    core: Any
    mode: ctypes.c_void_p

    @classmethod
    def load(cls) -> Frameworks:
        """Raises OSError anywhere but on macOS."""
        iokit = ctypes.CDLL("/System/Library/Frameworks/IOKit.framework/IOKit")
        core = ctypes.CDLL("/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation")
        return cls(iokit, core, ctypes.c_void_p.in_dll(core, "kCFRunLoopDefaultMode"))

    def declare(self) -> None:
        """Tell ctypes of the functions that take or give more than an int."""
        port, notifier = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint32)
        signatures: tuple[tuple[Any, str, Any, tuple[Any, ...]], ...] = (
            (self.iokit, "IORegisterForSystemPower", ctypes.c_uint32, (ctypes.c_void_p, port, _Callback, notifier)),
            (self.iokit, "IODeregisterForSystemPower", ctypes.c_int, (notifier,)),
            (self.iokit, "IOAllowPowerChange", ctypes.c_int, (ctypes.c_uint32, ctypes.c_ssize_t)),
            (self.iokit, "IOServiceClose", ctypes.c_int, (ctypes.c_uint32,)),
            (self.iokit, "IONotificationPortGetRunLoopSource", ctypes.c_void_p, (ctypes.c_void_p,)),
            (self.iokit, "IONotificationPortDestroy", None, (ctypes.c_void_p,)),
            (self.core, "CFRunLoopGetCurrent", ctypes.c_void_p, ()),
            (self.core, "CFRunLoopAddSource", None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
            (self.core, "CFRunLoopRun", None, ()),
            (self.core, "CFRunLoopStop", None, (ctypes.c_void_p,)),
        )
        for library, name, result, arguments in signatures:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments


class DarwinPower:
    """The system's power notifications; see SystemPower. `load` gives the libraries when it starts."""

    def __init__(self, load: Callable[[], Frameworks] = Frameworks.load) -> None:
        self._load = load
        self._libraries: Frameworks | None = None
        self._root = 0
        self._port, self._notifier = ctypes.c_void_p(), ctypes.c_uint32()
        self._loop: Any = None
        self._listens = threading.Event()
        # the system keeps no reference to it
        self._callback = _Callback(self._on_message)
        self._on_sleep: Callable[[Allow], None] = lambda allow: allow()
        self._on_wake: Callable[[], None] = lambda: None

    def start(self, on_sleep: Callable[[Allow], None], on_wake: Callable[[], None]) -> None:
        self._on_sleep, self._on_wake = on_sleep, on_wake
        self._libraries = libraries = self._load()
        libraries.declare()
        self._root = libraries.iokit.IORegisterForSystemPower(
            None, ctypes.byref(self._port), self._callback, ctypes.byref(self._notifier)
        )
        if not self._root:
            raise OSError("macOS does not tell this process of sleep")
        self._thread = threading.Thread(target=self._listen, args=(libraries,), name="system-power", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        libraries = self._libraries
        assert libraries is not None, "stop is the twin of start"
        libraries.iokit.IODeregisterForSystemPower(ctypes.byref(self._notifier))
        if self._listens.wait(_PATIENCE):
            libraries.core.CFRunLoopStop(self._loop)
            self._thread.join(_PATIENCE)
        libraries.iokit.IOServiceClose(self._root)
        libraries.iokit.IONotificationPortDestroy(self._port)

    def _listen(self, libraries: Frameworks) -> None:
        self._loop = libraries.core.CFRunLoopGetCurrent()
        source = libraries.iokit.IONotificationPortGetRunLoopSource(self._port)
        libraries.core.CFRunLoopAddSource(self._loop, source, libraries.mode)
        self._listens.set()
        libraries.core.CFRunLoopRun()

    def _on_message(self, _refcon: int | None, _service: int, kind: int, argument: int | None) -> None:
        allow = partial(self._allow, argument or 0)
        if kind == CAN_SLEEP:  # it is idle; what runs here does not keep it awake
            allow()
        elif kind == WILL_SLEEP:
            self._on_sleep(allow)
        elif kind in (WILL_NOT_SLEEP, POWERED_ON):
            self._on_wake()

    def _allow(self, notification: int) -> None:
        assert self._libraries is not None, "messages come only after start"
        self._libraries.iokit.IOAllowPowerChange(self._root, notification)


def system_power() -> SystemPower | None:
    """What tells of sleep on this machine; None where nothing does that mlxd follows."""
    return DarwinPower() if sys.platform == "darwin" else None
