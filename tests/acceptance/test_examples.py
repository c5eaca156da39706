"""The examples run, as a reader would run them: in a folder of their own, with warnings as errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, folder: Path, *arguments: str, status: int = 0, silent: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == status, f"{name} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert not (silent and done.stderr)
    return done.stdout


def test_a_program_that_killed_itself_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    first = run("crash_and_resume.py", tmp_path, status=-9)
    second = run("crash_and_resume.py", tmp_path)

    assert first.split("\n") == [*(f"round {n}" for n in range(1, 8)), ""]
    assert second.split("\n") == [
        *(f"round {n}" for n in range(7, 11)),  # 7 was not committed; 6 was, and its checkpoint too
        "learned in rounds [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]",
        "",
    ]


def test_an_order_goes_on_from_the_checkpoint_after_its_payment(tmp_path: Path) -> None:
    said = run("order_state_machine.py", tmp_path)

    assert "Resuming from step 2, stage: payment_complete" in said
    assert said.endswith("ORDER_COMPLETE [100]\n")


def test_a_model_that_is_never_set_again_is_trained_to_its_end(tmp_path: Path) -> None:
    said = run("ml_training.py", tmp_path)

    assert "Resuming from epoch 30" in said
    assert "TRAINING_COMPLETE 60" in said


def test_a_diamond_runs_once_and_its_second_run_executes_nothing(tmp_path: Path) -> None:
    said = run("etl_diamond.py", tmp_path)
    (tmp_path / "cities.csv").unlink()

    assert said == run("etl_diamond.py", tmp_path) == "3 cities loaded\n"
    assert not (tmp_path / "cities.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_demo_ends_with_the_same_weights(tmp_path: Path, seed: int) -> None:
    said = run("demo.py", tmp_path, "--seed", str(seed), "--kills", "3", "--epochs", "25")

    assert said.count("SIGKILL") >= 3
    assert "The same weights, to the last bit." in said
    assert list(tmp_path.iterdir()) == []  # it works in a folder of its own


@pytest.mark.slow
def test_the_demo_fails_if_the_weights_differ(tmp_path: Path) -> None:
    """A training loop that shuffles with a generator of its own is found out."""
    for name in ("demo.py", "training.py", "spirals.py"):
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        text = text.replace("shuffle.permutation(", "np.random.default_rng().permutation(")
        (tmp_path / name).write_text(text, encoding="utf-8")

    said = run(str(tmp_path / "demo.py"), tmp_path, "--kills", "1", "--epochs", "10", status=1)

    assert "THE WEIGHTS DIFFER" in said


def test_the_readme_opens_with_an_example_that_is_tested() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert (EXAMPLES / "crash_and_resume.py").read_text(encoding="utf-8") in readme


# --- make demo-fleet -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.crash
def test_the_demo_of_a_fleet_ends_with_each_task_committed_once(tmp_path: Path) -> None:
    said = run("demo_fleet.py", tmp_path, "--seed", "2", "--stores", "12", silent=True)

    assert said.count("SIGKILL") == 2
    assert "SIGKILL to worker-" in said
    assert "SIGKILL to redis" in said
    assert "157 of 157 committed once" in said
    assert list(tmp_path.iterdir()) == []  # it works in a folder of its own


@pytest.mark.slow
@pytest.mark.crash
def test_the_demo_of_a_fleet_fails_if_the_two_records_differ(tmp_path: Path) -> None:
    """A commit without an execution: the task is in the ledger, and no file has a line of it."""
    doctored = tmp_path / "demo_fleet.py"
    text = (EXAMPLES / "demo_fleet.py").read_text(encoding="utf-8")
    assert '    note("report")\n' in text
    doctored.write_text(text.replace('    note("report")\n', ""), encoding="utf-8")

    said = run(str(doctored), tmp_path, "--seed", "3", "--stores", "4", status=1, silent=True)

    assert "52 of 53 committed once" in said
