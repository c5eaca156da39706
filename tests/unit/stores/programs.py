"""Programs that tests of stores run in processes of their own, in the root of the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def command(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, *map(str, arguments)]


def printed(program: str, *arguments: object, env: dict[str, str] | None = None) -> list[str]:
    """The lines that it prints. It ends well, and says nothing of errors."""
    made = command(program, *arguments)
    done = subprocess.run(made, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()
