"""Machines with modules of their own: what a pool or a program can import is what lies in its folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.acceptance.fleets import Fleet
from tests.chaos.bodies import RUNS
from tests.chaos.pools import ROOT, Pool, surroundings

FLOWS = """
import os, time
from graflow_ckpt import group, task, workflow

VERSION = {version}

def note(name):
    with open(os.environ["CHAOS_RUNS"], "a") as file:
        file.write(f"{{name}} {{VERSION}} {{os.getpid()}}\\n")

@task
def first():
    note("first")
    return VERSION

@task(inject_context=True)
def middle(context, n=0):
    note(context.task_id)
    time.sleep(0.01)
    return n

@task
def last():
    note("last")
    return VERSION

def flow(session, width=20):
    with workflow("flow", session) as made:
        made.add(first >> group(*(middle.bind(id=f"m{{n}}", n=n) for n in range(width))) >> last)
    return made
"""


def machine(mine: Fleet, name: str, **modules: str) -> Path:
    """A folder with these modules."""
    folder = mine.folder / name
    folder.mkdir(exist_ok=True)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(dedent(text))
    return folder


def pool_on(mine: Fleet, folder: Path, **settings: str) -> Pool:
    """A pool that can import what is in a folder."""
    made = mine.pool(f"{folder.name}-{len(mine.pools)}", **settings)
    made._environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{folder}"
    return made


def program_on(mine: Fleet, folder: Path, text: str, *, status: int = 0, **environment: str) -> str:
    """What a program prints that is run there; `connect()` is imported."""
    file = folder / "program.py"
    file.write_text(f"from graflow_ckpt import connect, group, task, workflow\n{dedent(text)}")
    surrounding = surroundings(mine.server.url) | {RUNS: str(mine.folder / "runs")} | environment
    surrounding["PYTHONPATH"] = f"{ROOT}{os.pathsep}{folder}"
    done = subprocess.run(
        [sys.executable, file.name], cwd=folder, env=surrounding, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def ran(mine: Fleet) -> list[tuple[str, str, int]]:
    """What was noted: task, version, process."""
    file = mine.folder / "runs"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(name, version, int(pid)) for name, version, pid in map(str.split, lines)]
