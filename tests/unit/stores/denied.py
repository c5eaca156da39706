"""System calls that fail from now on, in this thread, as on a bad disk or a full one.

The kernel does it (seccomp), so that every library is met. There is no way back: for processes that a test
has started.
"""

from __future__ import annotations

import ctypes
import platform

_NUMBERS = {
    "x86_64": {"pread64": 17, "pwrite64": 18, "fsync": 74, "fdatasync": 75},
    "aarch64": {"pread64": 67, "pwrite64": 68, "fsync": 82, "fdatasync": 83},
}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


class _Step(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("yes", ctypes.c_uint8),
        ("no", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("steps", ctypes.POINTER(_Step))]


def deny(number: int, *calls: str) -> None:
    """`deny(errno.EIO, "fdatasync")`"""
    numbers = _NUMBERS[platform.machine()]
    wanted = [numbers[call] for call in calls]
    asked = [_Step(_EQUAL, len(wanted) - at, 0, call) for at, call in enumerate(wanted)]
    steps = [
        _Step(_LOAD, 0, 0, 0),
        *asked,
        _Step(_RETURN, 0, 0, _ALLOW),
        _Step(_RETURN, 0, 0, _ERROR | number),
    ]
    program = _Program(len(steps), (_Step * len(steps))(*steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SECCOMP, _FILTER, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "seccomp")
