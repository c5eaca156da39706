"""Kill anywhere: a real SIGKILL at the n-th line of engine, checkpoint or stores; the same command goes on.

The end has to be that of an uninterrupted run, to the last bit of the arrays. With a journal no completed
task runs again. What "completed" means is precise:

    committed    its end was told to observers, which is after its record was written and synced
    waited for   a task that follows it has started: also where a commit waits for a cut, because a
                 live value was on loan elsewhere, nothing that follows starts before it is durable

A start of the same task and cycle after either is a violation. A task that was killed before its commit
was durable may run again; those are counted and shown.

GRAFLOW_KILL_POINTS asks for other than 75 points for each of the two durabilities.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.acceptance.programs.flows import PROGRAMS, Program

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

POINTS = int(os.environ.get("GRAFLOW_KILL_POINTS", "75"))
DURABILITIES = ["checkpoint", "journal"]
HEAD = "program      durability   lines  points   kills  differences  run twice  against the promise"


def serve(program: str, durability: str, place: str) -> subprocess.Popen[str]:
    """The server is started with nothing of our checks, which cost more than what is killed."""
    folder = Path(place, durability)
    folder.mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith("GRAFLOW_CKPT_")}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.acceptance.programs.killing",
            program,
            durability,
            str(POINTS),
            str(folder),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=own,
        cwd=Path(__file__).parents[2],
    )


def starts_against_the_promise(log: list[str], program: Program) -> list[str]:
    """Starts of what was committed or waited for; cycles of one task follow each other."""
    over: set[tuple[str, str]] = set()
    newest: dict[str, str] = {}
    found = []
    for line in log:
        what, name, cycle = line.split()
        if what == "end" and program.commits_at_once:
            over.add((name, newest[name]))
        elif what == "start":
            if (name, cycle) in over:
                found.append(line)
            if name in newest and newest[name] != cycle:
                over.add((name, newest[name]))  # the next round of the same task
            newest[name] = cycle
            over |= {(before, newest[before]) for before in program.follows.get(name, ())}
    return found


def starts_twice(log: list[str]) -> int:
    starts = Counter(line for line in log if line.startswith("start"))
    return sum(number - 1 for number in starts.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_killed_anywhere_it_ends_as_if_it_had_not_been(name: str) -> None:
    program = PROGRAMS[name]
    in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # SIGKILL loses nothing of what was written
    rows = []
    with TemporaryDirectory(prefix="graflow-ckpt-kills-", dir=in_memory) as place:
        servers = [serve(name, durability, place) for durability in DURABILITIES]
        told = [server.communicate()[0] for server in servers]
    print(f"\n{HEAD}")
    for durability, text, server in zip(DURABILITIES, told, servers, strict=True):
        assert server.returncode == 0, text[-2000:]
        whole, *points = map(json.loads, text.splitlines())
        rows.append(row(name, program, durability, whole, points))
        print(rows[-1]["text"])

    assert [r["kills"] for r in rows] == [POINTS, POINTS]
    assert [r["different"] for r in rows] == [[], []]
    assert rows[1]["broken"] == []
    if name == "loading":
        print("loaders that outlived their parent:", [r["outlived"] for r in rows])
        assert all(r["outlived"] > POINTS // 6 for r in rows)  # their parent was killed, another went on


def row(
    name: str, program: Program, durability: str, whole: dict[str, Any], points: list[dict[str, Any]]
) -> dict[str, Any]:
    """What came of one program under one durability."""
    expected = whole["whole"]["final"]["state"]
    assert expected["status"] == "completed"
    kills = sum(p["killed"] for p in points)
    different = [p for p in points if p["final"] is None or p["final"]["state"] != expected]
    retries = starts_twice(whole["whole"]["log"])
    twice = sum(max(0, starts_twice(p["log"] or []) - retries) for p in points)
    broken = [(p["last"], b) for p in points for b in starts_against_the_promise(p["log"] or [], program)]
    return {
        "kills": kills,
        "different": different,
        "broken": broken,
        "outlived": sum(p["outlived"] for p in points),
        "text": f"{name:12} {durability:10} {whole['lines']:7} {len(points):7} {kills:7} {len(different):12} "
        f"{twice:10} {len(broken) if durability == 'journal' else '-':>20}",
    }
