"""Training loops that are killed again and again, at random: the weights are those of a run left alone.

GRAFLOW_KILLS asks for more than a few kills of each way to run one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graflow_ckpt.stores.around.keys import new_key
from tests.crash.training import EPOCHS
from tests.servers import Server

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("GRAFLOW_KILLS", "4"))
WAYS = ["auto", "journal", "thread", "process", "async", "redis"]
ROOT = Path(__file__).parents[2]


class Trainer:
    """Runs the program; it gets a signal once it has said so many lines."""

    def __init__(self, how: str, port: int) -> None:
        self._words = [how, str(port)]
        self._env = os.environ | {"PYTHONPATH": str(ROOT), "GRAFLOW_CKPT_KEY": new_key()}

    def run(
        self, session: str, kill_after: int | None = None, late: float = 0.0, number: int = signal.SIGKILL
    ) -> list[str]:
        command = [sys.executable, "-m", "tests.crash.training", session, *self._words]
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._env) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith("\n"):  # else it was killed while it wrote
                    lines.append(line.strip())
                if len(lines) == kill_after:
                    try:
                        process.wait(late)
                    except subprocess.TimeoutExpired:
                        process.send_signal(number)
        return lines


@pytest.mark.parametrize("how", WAYS)
def test_the_weights_are_those_of_a_run_that_nothing_kills(
    how: str, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(how, redis_server.port)
    *epochs, expected = trainer.run("alone")
    assert len(epochs) == EPOCHS
    kills, number, chance = 0, 0, random.Random()

    while kills < KILLS:
        number += 1
        first, lines = 0, []
        while not (lines and lines[-1].startswith("result")):
            lines = trainer.run(f"s{number}", chance.randint(1, 12), chance.random() * 0.02)
            kills += not lines or not lines[-1].startswith("result")
            if lines and lines[0].startswith("epoch"):
                begins = int(lines[0].split()[1])
                assert begins in (first, first + 1)  # the round that was not committed, and none before
                first = int([line for line in lines if line.startswith("epoch")][-1].split()[1])
        assert lines[-1] == expected


@pytest.mark.parametrize("how", ["auto", "thread", "async", "redis"])
def test_a_signal_lets_the_round_end_and_none_runs_twice(
    how: str, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(how, redis_server.port)

    stopped = trainer.run("s", 5, number=signal.SIGTERM)
    *rest, result = trainer.run("s")

    assert stopped + rest == [f"epoch {number}" for number in range(EPOCHS)]
    assert result == trainer.run("alone")[-1]
