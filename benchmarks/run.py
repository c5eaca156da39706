"""Runs the benchmarks and says how they stand: `python -m benchmarks.run [--smoke] [names…]`.

Each file benchmarks/bench_*.py is measured in a process of its own, one after the other, so that none
inherits the heap of the one before. A whole run writes benchmarks/results/python3.x.json and .txt, which are
kept; a run of some names writes partial.*, a smoke run smoke.*. The status is 1 if a bar was missed or a
benchmark failed; a smoke run judges no figure that depends on the machine's mood: it fails on errors and on
gross misses only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import harness, machine

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCRATCH = HERE.parent / ".bench"  # on the disk that the project is on; /tmp may be memory
COLUMNS = ["", "figure (median [min … max])", "floor", "ratio", "bar", ""]

Record = dict[str, Any]  # Any: JSON


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("names", nargs="*", help="benchmarks to run; all if none is named")
    parser.add_argument(
        "--smoke", action="store_true", help="small and short; judges only errors and gross misses"
    )
    parser.add_argument("--child", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)

    SCRATCH.mkdir(exist_ok=True)
    if options.child is not None:
        measured = measure_one(options.names[0], options.smoke)
        options.child.write_text(json.dumps(measured), encoding="utf-8")
        return 0

    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    if unknown := sorted(set(options.names) - set(known)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    return run(options.names or known, options.smoke, whole=not options.names)


def run(names: list[str], smoke: bool, whole: bool) -> int:
    about = machine.describe(SCRATCH)
    print(heading(about), flush=True)
    records = []
    for name in names:
        record = in_child(name, smoke)
        records.append(record)
        print(section(record), flush=True)
    missed = [case["case"] for record in records for case in record["cases"] if not case["ok"]]
    failed = [record["name"] for record in records if record["error"]]
    verdict = closing(missed, failed, smoke)
    print(verdict)
    stem = (
        "smoke"
        if smoke
        else f"python{sys.version_info.major}.{sys.version_info.minor}"
        if whole
        else "partial"
    )
    write(stem, about, records, verdict)
    return 1 if missed or failed else 0


def in_child(name: str, smoke: bool) -> Record:
    began = time.monotonic()
    with tempfile.NamedTemporaryFile(dir=SCRATCH, suffix=".json") as out:
        command = [
            sys.executable,
            "-m",
            "benchmarks.run",
            name,
            "--child",
            out.name,
            *(["--smoke"] if smoke else []),
        ]
        done = subprocess.run(command, cwd=HERE.parent, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            record: Record = json.loads(Path(out.name).read_text(encoding="utf-8"))
            error = ""
        else:
            record = {"name": name, "cases": []}
            error = done.stderr.strip() or f"exit status {done.returncode}"
    return record | {"error": error, "seconds": round(time.monotonic() - began, 1)}


def measure_one(name: str, smoke: bool) -> Record:
    benchmark = import_module(f"benchmarks.bench_{name}")
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        found = [harness.figures(entry, Path(folder), smoke=smoke) for entry in benchmark.CASES]
    return {"name": benchmark.NAME, "cases": [figure.record() for figures in found for figure in figures]}


def heading(about: dict[str, str]) -> str:
    return "\n".join(f"{key:<12} {value}" for key, value in about.items())


def section(record: Record) -> str:
    """The table of one benchmark."""
    title = f"\n{record['name']} ({record['seconds']} s)"
    if record["error"]:
        return f"{title}\n  FAILED\n{record['error']}"
    rows = [COLUMNS, *(case["row"] for case in record["cases"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = (
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
    return "\n".join([title, *(line.rstrip() for line in lines)])


def closing(missed: list[str], failed: list[str], smoke: bool) -> str:
    problems = [f"missed: {case}" for case in missed] + [f"failed: {name}" for name in failed]
    if problems:
        return "\n" + "\n".join(problems)
    return "\nsmoke run: nothing failed, no bar was judged" if smoke else "\nall bars are met"


def write(stem: str, about: dict[str, str], records: list[Record], verdict: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    document = {"machine": about, "benchmarks": records}
    (RESULTS / f"{stem}.json").write_text(
        json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    table = "\n".join([heading(about), *map(section, records), verdict, ""])
    (RESULTS / f"{stem}.txt").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
