"""Extract, clean and enrich at the same time, load: a diamond whose every step survives a crash.

With `durability="journal"` each commit is on the disk before what follows it starts, so a task
that has completed is never executed again. Run it twice: the second run prints the result of
the first and executes nothing. `--input path=...` is a parameter of `extract`.
"""

import csv
import sys
import threading
from pathlib import Path

from graflow_ckpt import Backoff, task, workflow

SAMPLE = "city,people\nOslo,717710\nBergen, 291940\nTrondheim,214565\n,1\n"


@task
def extract(path):
    """A parameter is filled from an input or a channel value of its name."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@task
def clean(extract):
    """Or from the result of a direct predecessor of its name."""
    return {row["city"]: int(row["people"]) for row in extract if row["city"]}


@task(max_retries=3, backoff=Backoff(0.01))
def enrich(extract):
    """At the same time as `clean`, on another thread; a failure is tried again."""
    assert threading.current_thread() is not threading.main_thread()
    return {row["city"]: row["city"][:3].upper() for row in extract if row["city"]}


@task
def load(clean, enrich):
    """Once, when both have arrived."""
    rows = [f"{enrich[city]},{people}" for city, people in sorted(clean.items())]
    Path("cities.csv").write_text("\n".join(["code,people", *rows]) + "\n", encoding="utf-8")
    return len(rows)


if not Path("raw.csv").exists():
    Path("raw.csv").write_text(SAMPLE, encoding="utf-8")

with workflow("etl", session_id="nightly", durability="journal") as ctx:
    extract >> (clean | enrich) >> load
    loaded = ctx.execute(inputs={"path": "raw.csv"})

print(f"{loaded} cities loaded", file=sys.stdout)
