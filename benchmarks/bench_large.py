"""What does a checkpoint of 1 GB cost, in time and in memory?

Method: a session holds four numpy arrays of 250 MB. Saving: wall time of `checkpoint()` to a new path
against writing and syncing the same memory to a new file. Memory: the highest resident size of a child
process while it saves, less what it had right before (state, interpreter, libraries). Loading: wall time of
`resume_from_checkpoint` against reading the same file into fresh memory; both from the page cache.
Unit: ms and MB. The floors are the bare calls. Before each call as much memory as it will need is used and
freed: a virtual machine gives what has been free for two seconds back to its host, and whoever needs it next
waits four times as long.
A regression: a copy of the state, a second pass over it, digests that do not run beside the writing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy

from benchmarks.harness import AtMost, Case, Ratio, Run
from benchmarks.programs import place
from graflow_ckpt import CheckpointManager, workflow
from graflow_ckpt.engine.context import ExecutionContext

NAME = "large"
ARRAYS = 4
SLICE = 8 << 20


def size(run: Run) -> int:
    """Bytes of one array."""
    return run.size(1_000_000_000, smoke=64_000_000) // ARRAYS


@cache
def array(nbytes: int, number: int) -> numpy.ndarray:
    return numpy.random.default_rng(number).integers(0, 1 << 62, nbytes // 8)


def session(run: Run) -> ExecutionContext:
    with workflow("large", "large", durability="checkpoint", store=place(run)) as flow:
        for number in range(ARRAYS):
            flow.get_channel().set(f"array{number}", array(size(run), number))
    return flow.execution_context


def warm(run: Run) -> None:
    """Free memory is this machine's, not its host's."""
    path = run.folder / "warm"
    with open(path, "wb", buffering=0) as file:
        for number in range(ARRAYS):
            file.write(array(size(run), number).data.cast("B"))
        file.write(bytes(size(run) // 2))
    path.unlink()


# --- saving ------------------------------------------------------------------------------


def save(run: Run) -> None:
    context = session(run)
    warm(run)
    with run.timed():
        context.checkpoint(str(run.folder / "large.pkl"))


def write(run: Run) -> None:
    arrays = [array(size(run), number).data.cast("B") for number in range(ARRAYS)]
    warm(run)
    with run.timed():
        file = os.open(run.folder / "large", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        for view in arrays:
            for start in range(0, len(view), SLICE):
                os.write(file, view[start : start + SLICE])
        os.fsync(file)
        os.close(file)


# --- memory ------------------------------------------------------------------------------


def peak(run: Run) -> None:
    program = f"from benchmarks import bench_large; bench_large.child({str(run.folder)!r}, {run.smoke})"
    root = Path(__file__).parents[1]
    out = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, stdout=subprocess.PIPE)
    run.report(float(out.stdout))


def child(folder: str, smoke: bool) -> None:
    """Prints by how many bytes the process was larger than its state while it saved."""
    run = Run(Path(folder), "wall", smoke)
    context = session(run)
    context.checkpoint(str(run.folder / "first.pkl"))  # loads what is loaded late
    Path("/proc/self/clear_refs").write_text("5")  # the highest size is taken anew from here on
    before = resident("VmRSS")
    context.checkpoint(str(run.folder / "large.pkl"))
    print(resident("VmHWM") - before)


def resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


# --- loading -----------------------------------------------------------------------------


def load(run: Run) -> None:
    path = saved(run)
    warm(run)
    with run.timed():
        context, _ = CheckpointManager.resume_from_checkpoint(path)
    found = context.get_channel().get("array0")
    assert found.nbytes == size(run)


def read(run: Run) -> None:
    path = saved(run)
    warm(run)
    with run.timed():
        file = os.open(path, os.O_RDONLY)
        view = memoryview(bytearray(os.fstat(file).st_size))
        at = 0
        while at < len(view):
            at += os.readv(file, [view[at : at + SLICE]])
        os.close(file)


def saved(run: Run) -> str:
    """The checkpoint that all calls load, in the page cache."""
    folder = run.folder.parent / "saved"
    path = str(folder / "large.pkl")
    own = Run(folder, "wall", run.smoke)
    if not os.path.exists(path):
        session(own).checkpoint(path)
    place(own)
    with open(path, "rb", buffering=0) as file:
        while file.read(SLICE):
            pass
    return path


CASES = [
    Case("save 1 GB", save, write, Ratio(1.2), disk=True),
    Case("… memory beside the state", peak, None, AtMost(64, "MB"), unit="MB"),
    Case("load 1 GB", load, read, Ratio(1.5)),
]
