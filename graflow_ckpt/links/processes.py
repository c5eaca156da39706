"""Processes: who one is, so that it can be told from another that was given its pid later.

Promise: `is_gone` is true only of a process that has certainly ended: one of this machine (the boot
id says so) and of this pid namespace. Of any other nothing is known, and somebody has to wait.
Outside Linux nothing is known of any. Not here: what a dead process leaves behind.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time

from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.core.redaction import redacted_argv

_ARGV = 1000
_ENDED = ("Z", "X")  # killed, and not waited for by its parent yet


def myself() -> Owner:
    """This process."""
    return describe(os.getpid())


def describe(pid: int) -> Owner:
    """A process of this machine. Outside Linux the start time, boot id and pid namespace are empty."""
    return Owner(
        pid=pid,
        started=_stat(pid)[1],
        boot=_boot(),
        pid_ns=_link(f"/proc/{pid}/ns/pid"),
        host=os.uname().nodename,
        argv=_argv(pid)[:_ARGV],
        since=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
    )


def is_near(owner: Owner) -> bool:
    """Whether its pid means a process that can be looked at from here."""
    if not owner.boot or owner.boot != _boot():
        return False  # another machine, or this one before it was started anew: which, is not to be told
    return bool(owner.pid_ns) and owner.pid_ns == _link("/proc/self/ns/pid")  # not another container


def is_gone(owner: Owner) -> bool:
    """Whether that process has ended for sure."""
    if not is_near(owner):
        return False
    state, started = _stat(owner.pid)
    return state in ("", *_ENDED) or (bool(owner.started) and started != owner.started)


def is_myself(owner: Owner) -> bool:
    return (owner.pid, owner.started, owner.boot) == (os.getpid(), _stat(os.getpid())[1], _boot())


def named(owner: Owner | None) -> str:
    """As errors speak of it."""
    if owner is None:
        return "another owner"
    return _shown(f"process {owner.pid} on {owner.host} (since {owner.since}: {owner.argv})")


def _shown(text: str) -> str:
    """Without what a terminal would obey: it comes from where others can write."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


# --- what the system says ----------------------------------------------------------------


def _stat(pid: int) -> tuple[str, str]:
    """State and start time; empty where there is no such process."""
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


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
