"""What does `import graflow_ckpt` cost?

Method: wall time of a fresh interpreter that imports the package and ends, against one that only ends (the
floor), both without site-packages' start-up files (`-I -S` and a path), in interleaved pairs. Unit: ms.
A regression: something heavy came onto the import path; tests/unit/test_layers.py names what must not be
there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Case, Extra, Run

NAME = "import"
ROOT = str(Path(__file__).parents[1])
LIBRARIES = [path for path in sys.path if path.endswith("-packages")]
BARE = f"import sys; sys.path[:0] = {[ROOT, *LIBRARIES]!r}"


def interpreter(run: Run, program: str) -> None:
    with run.timed():
        subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


def subject(run: Run) -> None:
    interpreter(run, f"{BARE}; import graflow_ckpt")


def floor(run: Run) -> None:
    interpreter(run, BARE)


CASES = [Case("import graflow_ckpt", subject, floor, Extra(60, "ms"), repetitions=21)]
