"""What does a durable checkpoint of 30 kB cost?

Method: wall time of `checkpoint()` called in a task of a running session whose .pkl has 20 kB and whose
.state.json has 10 kB: picture, pickle, digests, seal, the commit protocol. Unit: ms. The floor: three files
of the same sizes with bare system calls in the protocol's order: create, write, three fsyncs, fsync of the
folder, flock, rename of meta, fsync of the folder, two renames. Both write to new paths, as the engine does
by itself; one path again and again, and a cut by policy with its `KeepLast(10)`, are shown beside.
Of tasks of 50 ms with a checkpoint after each: the same chain that saves nothing, and one with five syncs in
each task, which nobody does without who writes three files and the folder that they are in.
A regression: one more sync, a folder that is read for each save, work that grows with the number of
checkpoints in it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import count as numbers
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Ratio, Run
from benchmarks.programs import chain, numbered, place
from graflow_ckpt import EveryTask, task, workflow

NAME = "trio"
TASKS = 98  # make a state.json of 10 kB
VALUE = bytes(range(250)) * 44  # with code and results a pkl of 20 kB


def saves(run: Run) -> int:
    return run.size(100, smoke=5)


def session(run: Run, work: Callable[[Any], None], **settings: Any) -> None:
    """A session of that size; its last task does the work."""
    with workflow("trio", "trio", durability="checkpoint", store=place(run), **settings) as flow:
        last = task(id="last", inject_context=True)(lambda context: work(context.execution_context))
        flow.get_channel().set("value", VALUE)
        chain([*numbered(TASKS), last])
        flow.execute()


# --- saving ------------------------------------------------------------------------------


def new_path(run: Run) -> None:
    session(run, partial(save_all, run, None))


def one_path(run: Run) -> None:
    session(run, partial(save_all, run, str(run.folder / "checkpoints" / "mine.pkl")))


def save_all(run: Run, path: str | None, context: Any) -> None:
    context.checkpoint(path)
    with run.timed(per=saves(run)):
        for _ in range(saves(run)):
            context.checkpoint(path)


def by_policy(run: Run) -> None:
    """One save after each of the last tasks, the eleventh newest taken away."""
    count = saves(run)
    calls = numbers(1)

    def body() -> None:
        number = next(calls)
        if number == TASKS:
            run.start()
        elif number == TASKS + count:
            run.stop(per=count)

    with workflow("trio", "trio", durability="checkpoint", store=place(run), checkpoint=EveryTask()) as flow:
        flow.get_channel().set("value", VALUE)
        chain(numbered(TASKS + count, body))
        flow.execute()


# --- of a task of 50 ms --------------------------------------------------------------------


def busy(run: Run, settings: dict[str, Any], after: Callable[[], None] = lambda: None) -> None:
    """A chain of tasks that take 50 ms each."""
    count = run.size(10, smoke=2)

    def body() -> None:
        time.sleep(0.05)
        after()

    with workflow("busy", store=place(run), **settings) as flow:
        chain(numbered(count, body))
        with run.timed(per=count):
            flow.execute()


def saved_after_each(run: Run) -> None:
    busy(run, {"durability": "checkpoint", "checkpoint": EveryTask()})


def never_saved(run: Run) -> None:
    busy(run, {"durability": "none"})


def five_syncs_after_each(run: Run) -> None:
    """What nobody saves three files for less than: each is synced, and the folder twice."""
    files = [os.open(run.folder / name, os.O_WRONLY | os.O_CREAT, 0o600) for name in "abc"]

    def sync() -> None:
        for file in files:
            os.write(file, VALUE)
            os.fsync(file)
        sync_folder(str(run.folder))
        sync_folder(str(run.folder))

    busy(run, {"durability": "none"}, sync)
    for file in files:
        os.close(file)


# --- the floor ---------------------------------------------------------------------------


def bare_new_path(run: Run) -> None:
    write_all(run, lambda number: f"trio_{number}")


def bare_one_path(run: Run) -> None:
    write_all(run, lambda number: "trio")


def write_all(run: Run, name: Callable[[int], str]) -> None:
    contents = {part: os.urandom(size) for part, size in sizes(run.folder.parent).items()}
    folder = str(run.folder)
    lock = os.open(f"{folder}/.lock", os.O_RDWR | os.O_CREAT, 0o600)
    write_trio(folder, lock, "first", "first", contents)
    with run.timed(per=saves(run)):
        for number in range(saves(run)):
            write_trio(folder, lock, name(number), f"{number}", contents)
    os.close(lock)


def write_trio(folder: str, lock: int, base: str, stage: str, contents: dict[str, bytes]) -> None:
    """W1 to W6 of stores/files/trio.py."""
    files = []
    for part, content in contents.items():
        file = os.open(f"{folder}/{base}.{stage}.{part}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, content)
        files.append(file)
    for file in files:
        os.fsync(file)
    sync_folder(folder)
    for file in files:
        os.close(file)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(f"{folder}/{base}.{stage}.meta.json.tmp", f"{folder}/{base}.meta.json")
    sync_folder(folder)
    for part in ("pkl", "state.json"):
        os.rename(f"{folder}/{base}.{stage}.{part}.tmp", f"{folder}/{base}.{part}")
    fcntl.flock(lock, fcntl.LOCK_UN)


def sync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(file)
    os.close(file)


@cache
def sizes(folder: Path) -> dict[str, int]:
    """Of the three files as a session makes them."""
    run = Run(folder / "sizes", "wall", smoke=True)
    session(run, lambda context: context.checkpoint(str(run.folder / "one.pkl")))
    return {part: os.path.getsize(run.folder / f"one.{part}") for part in ("pkl", "state.json", "meta.json")}


CASES = [
    Case("trio at a new path", new_path, bare_new_path, Ratio(2.0), repetitions=11, disk=True),
    Case("… over the one before", one_path, bare_one_path, None, disk=True),
    Case("… by policy, with the oldest taken away", by_policy, bare_new_path, None, disk=True),
    Case("task of 50 ms, saved after each", saved_after_each, never_saved, None, disk=True),
    Case("… beside five syncs after each", saved_after_each, five_syncs_after_each, Ratio(1.05), disk=True),
]
