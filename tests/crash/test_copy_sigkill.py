"""Copying that is killed: what is at the target is whole, and the same command ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from tests.servers import Server
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import left, line
from tests.unit.checkpoint.test_copying import append, replayed

pytestmark = pytest.mark.crash

COPIES = 6
# Dies in the middle of the Nth checkpoint, or (0) between two records of the journal, or (-1) not at all.
VICTIM = """
import os, signal, sys
from graflow_ckpt.checkpoint import copying, tail
from graflow_ckpt.interfaces.cli import main
origin, target, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
poured = framed = 0
tail.BATCH = 1  # so that each record is appended alone
pour, frame = copying.pour, tail.journal.Writer.frame
def dying(opened, sink):
    global poured
    poured += 1
    if poured == 2 * number - 1:
        sink.write(b"the beginning of")
        os.kill(os.getpid(), signal.SIGKILL)
    pour(opened, sink)
def dying_frame(self, payload):
    global framed
    framed += 1
    if number == 0 and framed == 3:  # the first one is the head
        os.kill(os.getpid(), signal.SIGKILL)
    return frame(self, payload)
copying.pour, tail.journal.Writer.frame = dying, dying_frame
raise SystemExit(main(["checkpoints", "copy", "--from", origin, "--to", target]))
"""


@pytest.fixture(params=["local", "sqlite", "redis"])
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CheckpointStore]:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
    if request.param == "redis":
        with Server({"appendonly": "yes", "appendfsync": "always"}) as server:
            yield open_store(server.url)
    else:
        yield open_store(f"sqlite:///{tmp_path}/t.db" if request.param == "sqlite" else tmp_path / "target")


def copied(origin: CheckpointStore, target: CheckpointStore, number: int) -> int:
    command = [sys.executable, "-c", VICTIM, origin.folder, target.folder, str(number)]
    return subprocess.run(command, capture_output=True, timeout=60, env=os.environ, check=False).returncode


def test_a_copy_that_is_killed_leaves_whole_ones_and_is_ended_by_the_next(
    target: CheckpointStore, tmp_path: Path
) -> None:
    origin = open_store(tmp_path / "origin")
    line(origin, "s", COPIES)
    append(origin, 2, 3, after=1)

    for number in (1, 3, 0, -1):
        status = copied(origin, target, number)

        assert status == (-signal.SIGKILL if number >= 0 else 0)
        for path, _ in target.list():
            archive.check(target, trios.RING, path)

    assert left(target) == left(origin)
    assert replayed(target, trios.RING) == [2, 3]
