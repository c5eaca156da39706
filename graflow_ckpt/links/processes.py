"""Processes: the identity of each, so that it can be told from another that was given its pid later.

Promise: `is_gone` is true only of a process that has certainly ended: one of this machine (the boot
id says so) and of this pid namespace, of which the kernel says that it is not there. Of any other nothing is
known, and a user has to wait. A process that /proc does not show may be another user's (`hidepid=2`,
systemd's `ProtectProc`). Outside Linux nothing is known of any. Not here: what a dead process leaves behind.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import sys
import time
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar

from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.core.redaction import redacted_argv

_ARGV = 1000
_LONGEST = 1 << 16  # an owner as JSON takes some thousand bytes
_ENDED = ("Z", "X")  # killed, and not waited for by its parent yet


def myself() -> Owner:
    """Return this process."""
    return describe(os.getpid())


def describe(pid: int) -> Owner:
    """Describe a process of this machine. Outside Linux start time, boot id and pid namespace are empty."""
    return Owner(
        pid=pid,
        started=_stat(pid)[1],
        boot=_boot(),
        pid_ns=_link(f"/proc/{pid}/ns/pid"),
        host=os.uname().nodename,
        argv=_argv(pid)[:_ARGV],
        since=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
    )


def owner_from(text: str | bytes) -> Owner | None:
    """Return the process that a text names; None if it names none."""
    try:
        return made_of(Owner, json.loads(text)) if len(text) <= _LONGEST else None
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None


_KINDS: dict[Any, type | tuple[type, ...]] = {
    "str": str, "int": int, "bool": bool, "float": (int, float)
}  # fmt: skip
T = TypeVar("T")


def made_of(kind: type[T], known: dict[str, Any]) -> T:
    """Return a record of the fields that this version knows: a process of the next one may say more.

    TypeError if one of them is not of its type.
    """
    types = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    for name, value in known.items():
        if not isinstance(value, _KINDS.get(types.get(name), object)):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return kind(**{name: value for name, value in known.items() if name in types})


def is_near(owner: Owner) -> bool:
    """Return True if its pid means a process that can be looked at from here."""
    if not owner.boot or owner.boot != _boot():
        return False  # another machine, or this one before it was restarted: which of them is unknown
    return bool(owner.pid_ns) and owner.pid_ns == _link("/proc/self/ns/pid")  # not another container


def is_gone(owner: Owner) -> bool:
    """Return True if that process has ended for sure."""
    if not is_near(owner):
        return False
    state, started = _stat(owner.pid)
    if not state:
        return not _exists(owner.pid)
    return state in _ENDED or (bool(owner.started) and started != owner.started)


def _exists(pid: int) -> bool:
    """Ask the kernel, which knows also of those that /proc does not show."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True


def is_myself(owner: Owner) -> bool:
    return (owner.pid, owner.started, owner.boot) == (os.getpid(), _stat(os.getpid())[1], _boot())


def user_of(owner: Owner) -> int | None:
    """Return the user of a process of this machine; None if it has ended, or if /proc does not show it."""
    try:
        return os.stat(f"/proc/{owner.pid}").st_uid
    except OSError:
        return None


def end(owner: Owner, grace: float) -> bool:
    """End that process, with SIGKILL if SIGTERM has not helped in time; True if it has ended.

    Its pid may be another process's in any moment; a handle is not, if the start time is right after it
    was opened. Where there are no handles the pid is looked at before each signal.
    """
    try:
        handle = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        handle = -1
    try:
        _signal(owner, handle, signal.SIGTERM)
        _signal(owner, handle, signal.SIGCONT)  # one that is stopped gets SIGTERM only when it runs again
        if not _has_ended(owner, handle, grace):
            _signal(owner, handle, signal.SIGKILL)
        return _has_ended(owner, handle, grace)
    finally:
        if handle >= 0:
            os.close(handle)


def _signal(owner: Owner, handle: int, number: signal.Signals) -> None:
    if not is_near(owner) or is_gone(owner):
        return
    with suppress(ProcessLookupError, PermissionError):  # another user's is not ended, and the caller says so
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(owner.pid, number)


def _has_ended(owner: Owner, handle: int, seconds: float) -> bool:
    if is_gone(owner):  # the handle may be of the process that has its pid now
        return True
    if handle >= 0:
        ends = select.poll()
        ends.register(handle, select.POLLIN)
        return bool(ends.poll(seconds * 1000))
    end = time.monotonic() + seconds
    while not is_gone(owner):
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def holders(path: str) -> list[Owner]:
    """Return the processes that have the file open, as far as this user may know; not this one."""
    found, there = [], os.stat(path)
    for pid in (int(name) for name in _names("/proc") if name.isdigit()):
        for fd in _names(f"/proc/{pid}/fd") if pid != os.getpid() else ():
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), there):
                    found.append(describe(pid))
                    break
    return found


def named(owner: Owner | None) -> str:
    """Return the name that errors use."""
    if owner is None:
        return "another owner"
    text = f"process {owner.pid} on {owner.host} (since {owner.since}: {owner.argv})"
    # without what a terminal would obey: it comes from where others can write
    return "".join(sign if sign.isprintable() else "?" for sign in text)


# --- what the system says ----------------------------------------------------------------


def _stat(pid: int) -> tuple[str, str]:
    """Return state and start time; empty where there is no such process."""
    # the name of the program, in parentheses, may itself contain spaces and parentheses
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _argv(pid: int) -> str:
    """Return the command line as typed, without secrets: this is stored and shown."""
    words = sys.orig_argv if pid == os.getpid() else _read(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
    return shlex.join(redacted_argv([re.sub(r"(?<=://)[^/\s]*@", "", word) for word in words]))


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
