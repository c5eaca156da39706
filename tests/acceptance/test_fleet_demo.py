"""`make demo-fleet` as a reader runs it, without a terminal; and that it would notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo_fleet.py"

pytestmark = [pytest.mark.slow, pytest.mark.crash]


def run(program: Path, folder: Path, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, program, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stderr == ""
    return done.stdout


def test_it_ends_with_each_task_committed_once(tmp_path: Path) -> None:
    said = run(DEMO, tmp_path, "--seed", "2", "--stores", "12")

    assert said.count("SIGKILL") == 2
    assert "SIGKILL to worker-" in said
    assert "SIGKILL to redis" in said
    assert "157 of 157 committed once" in said
    assert list(tmp_path.iterdir()) == []  # it works in a folder of its own


def test_it_says_so_if_the_two_records_differ(tmp_path: Path) -> None:
    """A commit without an execution: the task is in the ledger, and no file has a line of it."""
    doctored = tmp_path / "demo_fleet.py"
    text = DEMO.read_text(encoding="utf-8")
    assert '    note("report")\n' in text
    doctored.write_text(text.replace('    note("report")\n', ""), encoding="utf-8")

    said = run(doctored, tmp_path, "--seed", "3", "--stores", "4", status=1)

    assert "52 of 53 committed once" in said
