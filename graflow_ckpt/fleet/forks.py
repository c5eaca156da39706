"""Children of a pool: forked, and gone the moment their parent is.

A child inherits what its parent has loaded, so that it is ready in milliseconds and shares its memory.
It inherits no connection: whoever forks uses none that a child would use.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger("graflow_ckpt.fleet")

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None)  # opened once, by the parent


def fork(body: Callable[[], int]) -> int:
    """A child that runs `body` and ends with the status that it returns; its pid."""
    parent = os.getpid()
    _flush()
    gc.freeze()  # else the first collection in the child would copy every page that it looks at
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)  # a terminal's Ctrl-C is for the parent, and not for what tasks have started
        die_with(parent)
        _seed()
        status = body()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:
        log.exception("a process of the pool failed")
    finally:
        leave(status)
    raise AssertionError("unreachable")


def leave(status: int) -> None:
    """End this process: without the exit handlers that it has inherited, and without waiting for threads."""
    logging.shutdown()
    _flush()
    os._exit(status)


def die_with(parent: int) -> None:
    """From now on this process ends when its parent does, whatever it is doing."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), name="graflow-parent", daemon=True).start()
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def be_called(name: str) -> None:
    """The name of this process in `ps` and `top`, next to the command line that it shares with its parent."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_NAME, name.encode()[:15])


def deaf(number: int) -> None:
    """The signal does nothing here. Not SIG_IGN: programs that a task starts would inherit that."""
    signal.signal(number, lambda number, frame: None)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _seed() -> None:
    """The standard library reseeds itself; numpy would draw the same numbers in every worker."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads it
            stream.flush()
