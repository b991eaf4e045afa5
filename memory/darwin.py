"""What only macOS's kernel knows: a process's physical footprint and the limit of wired GPU memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from mlxd.memory.outside import CALM, Strain, StrainLevel

MIB = 1 << 20
GIB = 1 << 30
_RUSAGE_INFO_V0 = 0
# kern.memorystatus_vm_pressure_level in the words of <sys/event.h>; 1 is normal
_STRAINS: Mapping[int, Strain] = {
    2: Strain(StrainLevel.WARN, "macOS says warn"),
    4: Strain(StrainLevel.CRITICAL, "macOS says critical"),
}


class RusageInfoV0(ctypes.Structure):
    """`struct rusage_info_v0` of <sys/resource.h>: 96 bytes, the footprint at offset 72."""

    _fields_ = (
        ("ri_uuid", ctypes.c_uint8 * 16),
        ("ri_user_time", ctypes.c_uint64),
        ("ri_system_time", ctypes.c_uint64),
        ("ri_pkg_idle_wkups", ctypes.c_uint64),
        ("ri_interrupt_wkups", ctypes.c_uint64),
        ("ri_pageins", ctypes.c_uint64),
        ("ri_wired_size", ctypes.c_uint64),
        ("ri_resident_size", ctypes.c_uint64),
        ("ri_phys_footprint", ctypes.c_uint64),
        ("ri_proc_start_abstime", ctypes.c_uint64),
        ("ri_proc_exit_abstime", ctypes.c_uint64),
    )


class DarwinKernel:
    """Calls into macOS's system library; `library` is any object with its functions."""

    def __init__(self, library: Any) -> None:
        self._rusage = library.proc_pid_rusage
        self._rusage.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        self._rusage.restype = ctypes.c_int
        self._sysctl = library.sysctlbyname
        self._sysctl.argtypes = (
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.c_void_p,
            ctypes.c_size_t,
        )
        self._sysctl.restype = ctypes.c_int

    @classmethod
    def load(cls) -> DarwinKernel:
        """With the real library; raises OSError anywhere but on macOS."""
        return cls(ctypes.CDLL("/usr/lib/libSystem.B.dylib"))

    def phys_footprint(self, pid: int) -> int | None:
        """Bytes the kernel charges to the process, None when it does not say (it ended, or is another user's)."""
        info = RusageInfoV0()
        if self._rusage(pid, _RUSAGE_INFO_V0, ctypes.byref(info)) != 0:
            return None
        return int(info.ri_phys_footprint)

    def wired_limit(self) -> int | None:
        """iogpu.wired_limit_mb in bytes, None when it is not set (0 is the system's default)."""
        return self._number(b"iogpu.wired_limit_mb") * MIB or None

    def strain(self) -> Strain:
        """The memory pressure level that macOS tells programs; calm when it does not say."""
        return _STRAINS.get(self._number(b"kern.memorystatus_vm_pressure_level"), CALM)

    def _number(self, name: bytes) -> int:
        """A sysctl of four or eight bytes, 0 when there is none of this name."""
        value = ctypes.c_uint64(0)
        size = ctypes.c_size_t(ctypes.sizeof(value))
        if self._sysctl(name, ctypes.byref(value), ctypes.byref(size), None, 0) != 0:
            return 0
        return value.value


def default_working_set(machine_total: int) -> int:
    """Metal's recommended working set in bytes when it cannot be asked: two thirds, above 32 GiB three quarters."""
    if machine_total > 32 * GIB:
        return machine_total * 3 // 4
    return machine_total * 2 // 3
