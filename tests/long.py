"""For as long as one likes: `make test-long MINUTES=60`, what `make test` does for a moment.

Each in its turn, with another seed each time: the state machines and all that Hypothesis generates, with many
examples; generated programs in memory and in Redis; attacks; histories of two workers; chaos on a fleet;
kills at any line. Each command is printed with its seed, so that it can be run again alone.
Each has the same share of the time and stops at its first failure; the next one has its turn all the same.
The status is 1 if any failed. What is found becomes an example of its test.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

MACHINES = (
    "tests/unit/core", "tests/unit/sessions", "tests/unit/stores/around/test_fallback_machine.py",
    "tests/unit/checkpoint", "tests/unit/frontends/test_expressions.py",
)  # fmt: skip
PROGRAMS = ("tests/acceptance/test_redis_programs.py",)
TURNS = 6
MANY = {"GRAFLOW_GRAPHS": "2000", "GRAFLOW_REDIS_GRAPHS": "200", "GRAFLOW_KILL_POINTS": "150"}


def turns(seed: int) -> Iterator[list[str]]:
    """The commands, for ever."""
    pytest = ["pytest", "-q", "-x", "-n", "2", "--dist", "worksteal", "--timeout", "1800"]
    while True:
        yield [*pytest, "--hypothesis-profile=long", f"--hypothesis-seed={seed}", *MACHINES]
        yield [*pytest, f"--hypothesis-seed={seed}", *PROGRAMS]
        yield ["tests.attacks.run", "--count", "20000", "--seed", str(seed)]
        yield ["tests.crash.histories", "--count", "100", "--seed", str(seed)]
        yield ["tests.chaos.run", "--seed", str(seed)]
        yield [*pytest, "tests/acceptance/test_kill_anywhere.py"]
        seed += 1


def runs(command: list[str], seconds: float) -> int | None:
    """The status that it ended with; None if its time was over, with all of its processes ended."""
    run = subprocess.Popen([sys.executable, "-m", *command], env=os.environ | MANY, start_new_session=True)
    try:
        return run.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as over:
        os.killpg(run.pid, signal.SIGKILL)  # its number is its own until it was waited for
        run.wait()
        if isinstance(over, KeyboardInterrupt):
            raise
        print("its time is over", flush=True)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    given = parser.parse_args()
    end, bad = time.monotonic() + given.minutes * 60, list[str]()
    for command in turns(given.seed):
        left = end - time.monotonic()
        if left <= 0:
            break
        shown = f"python -m {' '.join(command)}"
        print(f"\n=== {shown}", flush=True)
        if runs(command, min(left, given.minutes * 60 / TURNS)) not in (0, None):
            bad.append(shown)
    print(f"\n=== seed {given.seed}: {len(bad)} failed", *bad, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
