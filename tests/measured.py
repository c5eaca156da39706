"""Measures which lines and branches of the package the tests run: `make coverage`.

The tests are run in three parts, each measured apart: unit tests, integration tests (which speak to servers,
kill processes or take several of our parts together) and acceptance tests (which use the package as its users
do). Each part has folders of the package that it must cover, and all together must cover the package. The
processes that tests start are measured, too, unless they are killed. Whether tests pass, `make test` says:
being measured takes twice the time, which a few that look at the clock do not have.

    python -m tests.measured              all parts, then the table; the status is 1 below a floor
    python -m tests.measured unit         one part
    python -m tests.measured --read       the table of what was measured before
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from coverage import Coverage

ROOT = Path(__file__).parents[1]
SERVERS = ("tests/unit/fleet", "tests/unit/links", "tests/unit/stores/drivers")
TOGETHER = ("attacks", "chaos", "conformance", "crash", "golden")
FOLDERS = ("core", "sessions", "checkpoint", "engine", "frontends", "stores")
DRIVERS = "graflow_ckpt/stores/drivers"
ALL, FLOOR = "all", 95


class Part(NamedTuple):
    """Some of the tests, and what of the package they cover to how many percent at least."""

    tests: Sequence[str]
    covers: Sequence[str]
    floor: int
    apart: Sequence[str] = ()


PARTS = {
    "unit": Part(
        ["tests/unit", *(f"--ignore={folder}" for folder in SERVERS)],
        [f"graflow_ckpt/{name}" for name in FOLDERS],
        95,
        [DRIVERS],
    ),
    "integration": Part(
        [*SERVERS, *(f"tests/{name}" for name in TOGETHER)],
        [DRIVERS, "graflow_ckpt/links", "graflow_ckpt/fleet"],
        90,
    ),
    "acceptance": Part(["tests/acceptance", "tests/deploy", "tests/docs"], ["graflow_ckpt/cli"], 85),
}


def data_of(part: str) -> Path:
    """Absolute: the processes that tests start work in other folders."""
    return ROOT / (".coverage" if part == ALL else f".coverage.{part}")


def unmeasured() -> dict[str, str]:
    """The environment of a process that may not write, or whose modules are counted."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


def measure(part: str, options: Sequence[str]) -> None:
    """Run the tests of a part, and nothing of it that was measured before."""
    for file in ROOT.glob(f".coverage.{part}*"):  # also of processes that were killed
        file.unlink()
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "--cov", "--cov-report="]
    given = {**os.environ, "COVERAGE_FILE": str(data_of(part))}
    subprocess.run([*command, *PARTS[part].tests, *options], cwd=ROOT, env=given, check=False)


def percent(part: str, covers: Sequence[str] = (), apart: Sequence[str] = ()) -> float:
    """How much of these folders a part has run; of the whole package, if none are named."""
    found = Coverage(data_file=str(data_of(part)))
    found.load()
    include, omit = ([str(ROOT / folder / "*") for folder in folders] for folders in (covers, apart))
    return found.report(include=include or None, omit=omit or None, file=io.StringIO())


def combine() -> None:
    """Put the parts together; what is not in them yet stays."""
    whole = Coverage(data_file=str(data_of(ALL)))
    whole.combine([str(data_of(part)) for part in PARTS], keep=True)
    whole.save()


def rows(parts: Sequence[str]) -> Iterable[tuple[str, float, int]]:
    """What was measured, how much of it was run, and how much must be."""
    for name in parts:
        part = PARTS[name]
        for folder in part.covers:
            where = folder.removeprefix("graflow_ckpt/")
            yield f"{name}: {where}", percent(name, [folder], part.apart), 0
        yield f"{name}: all of these", percent(name, part.covers, part.apart), part.floor
    if len(parts) == len(PARTS):
        combine()
        yield "all tests: the package", percent(ALL), FLOOR


def main(words: Sequence[str]) -> int:
    parts = [word for word in words if word in PARTS] or list(PARTS)
    if "--read" not in words:
        for part in parts:
            measure(part, [word for word in words if word not in PARTS])
    below = False
    for what, found, floor in rows(parts):
        print(f"{what:40}{found:8.1f} %{f'{floor:8} %' if floor else ''}{'  below' if found < floor else ''}")
        below |= found < floor
    return int(below)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
