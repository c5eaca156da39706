"""`python -m tests.attacks.run --count 100000`: the corpus of attacks, mutated by a seed, on every store.

Attack number N of a seed is always the same one. Each has to be refused by a named error, or to mean
what was there before; and the canary must not sing. What breaks that is printed with its number.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from graflow_ckpt.core.errors import GraflowError
from tests.attacks import canary, on_places, on_trios
from tests.attacks.attempts import ATTACKS, Breach
from tests.attacks.scene import PLACES, Scene

KINDS = (on_trios, on_places)  # importing them has filled the table
WEIGHTS = {"memory": 68, "local": 15, "sqlite": 7, "redis": 7, "postgres": 2, "objects": 1}
"""Of a hundred attacks; a store that writes to a disk takes ten times as long."""


@dataclass
class Tally:
    """What came of how many."""

    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)
    breaches: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.refused.total() + self.same.total() + len(self.breaches)


def one(scene: Scene, place: str, seed: int, number: int, tally: Tally) -> None:
    """Attack number `number`, with what it comes to."""
    rng = Random(f"{seed}/{place}/{number}")
    what = list(ATTACKS)[number % len(ATTACKS)]
    try:
        ATTACKS[what](scene, rng)
        tally.same[what] += 1
    except GraflowError as error:
        if type(error) is GraflowError or not error.message:
            tally.breaches.append(f"{place} {number}: {what}: refused without a name: {error!r}")
        if any(sign in str(error) for sign in "\x1b\x07\r\0\x9b"):
            tally.breaches.append(f"{place} {number}: {what}: a terminal would obey {error!r:.200}")
        tally.refused[what, type(error).__name__] += 1
    except Exception as error:  # noqa: BLE001  every other one is what is looked for
        kind = "" if isinstance(error, Breach) else f"{type(error).__name__}: "
        tally.breaches.append(f"{place} {number}: {what}: {kind}{error!s:.300}")
    if canary.HEARD:
        tally.breaches.append(f"{place} {number}: {what}: code was run: {canary.HEARD}")
        canary.HEARD.clear()


def run(count: int, seed: int, places: tuple[str, ...] = tuple(PLACES), first: int = 0) -> Tally:
    """So many attacks, shared out between the places."""
    tally = Tally()
    logging.disable(logging.WARNING)
    try:
        for place in places:
            share = count * WEIGHTS[place] // sum(WEIGHTS[name] for name in places)
            with (
                tempfile.TemporaryDirectory(prefix="graflow-attacks-") as folder,
                PLACES[place](Path(folder)) as scene,
            ):
                for number in range(first, first + share):
                    one(scene, place, seed, number, tally)
    finally:
        logging.disable(logging.NOTSET)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--place", action="append", choices=list(PLACES), help="one store instead of all")
    given = parser.parse_args()
    began = time.monotonic()
    tally = run(given.count, given.seed, tuple(given.place or PLACES), given.first)
    for (what, error), count in sorted(tally.refused.items()):
        print(f"{count:7d}  {error:22s} {what}")
    for what, count in sorted(tally.same.items()):
        print(f"{count:7d}  {'as it was':22s} {what}")
    for breach in tally.breaches[:50]:
        print(f"BREACH   {breach}")
    print(
        f"{tally.total} attacks of {len(ATTACKS)} kinds, seed {given.seed}: {tally.refused.total()} refused, "
        f"{tally.same.total()} changed nothing, {len(tally.breaches)} breaches; "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if tally.breaches else 0


if __name__ == "__main__":
    raise SystemExit(main())
