"""An owner of a session in another process, which does what it is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.unit.stores.kinds import ROOT, Kind

OWNER = """
lease = store.acquire("s")
print(lease.epoch, flush=True)
for line in sys.stdin:
    try:
        print(put(store, line.strip(), "theirs", lease), flush=True)
    except GraflowError as error:
        print(type(error).__name__, error, flush=True)
"""


@contextmanager
def owner_elsewhere(kind: Kind, lease: float) -> Iterator[subprocess.Popen[str]]:
    """A process that acquires the session, says so, and for each line puts a checkpoint of that name."""
    command = [sys.executable, "-c", kind.program(OWNER, lease=lease)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()
