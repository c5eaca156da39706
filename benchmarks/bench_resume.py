"""How long until a large session that was interrupted works again?

Method: a session of 11,000 distinct tasks is stopped by max_steps with 10,000 completed and 1,000 pending.
A fresh process runs the same program; counted is its CPU time, all threads, from the call of `execute` to
the first line of the first task that runs: loading what the engine needs, finding the newest checkpoint,
verifying it, comparing every task with the program, values, the first claim. Unit: ms. The floor: reading the
three files of that checkpoint and parsing the two that are JSON.
A regression: a second look at each task, pickles opened for code that the program has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import AtMost, Case, Run
from benchmarks.programs import place

NAME = "resume"

PROGRAM = """\
import os, sys, time
from graflow_ckpt import group, task, workflow

def reached(number):
    if len(sys.argv) == 1:
        print(time.process_time() - float(os.environ["BEGAN"]), flush=True)
        os._exit(0)
    return number

{tasks}

with workflow("large", "large", durability="checkpoint", store="checkpoints", max_parallel=1) as flow:
    group(*[{names}])
    os.environ["BEGAN"] = repr(time.process_time())  # a global would be part of the tasks
    flow.execute(max_steps=int(sys.argv[1]) if sys.argv[1:] else {count})
"""
TASK = "@task\ndef t{n}():\n    return reached({n})\n"


def resume(run: Run) -> None:
    with prepared(run) as folder:
        shutil.copytree(folder, run.folder / "copy")
    out = execute(run.folder / "copy")
    run.report(float(out))


def parse(run: Run) -> None:
    with prepared(run) as folder:
        (meta,) = (folder / "checkpoints").glob("*.meta.json")
        base = str(meta).removesuffix(".meta.json")
    with run.timed():
        for part in ("pkl", "state.json", "meta.json"):
            with open(f"{base}.{part}", "rb") as file:
                raw = file.read()
            if part != "pkl":
                json.loads(raw)


@contextmanager
def prepared(run: Run) -> Iterator[Path]:
    """A folder with the program and the interrupted session, made once."""
    folder = run.folder.parent / "prepared"
    place(Run(folder, "cpu", run.smoke))
    if not folder.exists():
        folder.mkdir()
        done, left = run.size(10_000, smoke=200), run.size(1_000, smoke=20)
        tasks = "\n".join(TASK.format(n=n) for n in range(done + left))
        names = ", ".join(f"t{n}" for n in range(done + left))
        text = PROGRAM.format(tasks=tasks, names=names, count=done + left)
        (folder / "program.py").write_text(text, encoding="utf-8")
        execute(folder, str(done))
    yield folder


def environment(root: Path) -> dict[str, str]:
    """With bytecode, as an installed package has it: reading source is no part of the question."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": str(root / ".bench" / "bytecode")}


def execute(folder: Path, *arguments: str) -> str:
    root = Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=folder,
        env=environment(root),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout


CASES = [
    Case("first task after 10,000 + 1,000", resume, parse, AtMost(100, "ms"), clock="cpu", repetitions=11),
]
