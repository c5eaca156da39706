"""A module that takes the process down that imports it, where it is told to."""

from __future__ import annotations

import os
import signal

from graflow_ckpt import task

if os.environ.get("FLEET_POISON"):
    os.kill(os.getpid(), signal.SIGSEGV)


@task
def innocent(folder: str, name: str) -> str:
    return name
