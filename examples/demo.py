"""The demo: a training loop is killed with SIGKILL at random times and goes on where it was.

It runs `training.py` in two fresh folders: in one it is left alone, in the other it is killed
(by pid, at moments drawn from the whole length of the run) and started again with the same
command. Both must end with the same weights, to the last bit; the exit status says so.

    make demo                              another moment each time; the seed is printed
    make demo ARGS="--seed 7 --kills 5"    a draw of one's own
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).parent
PROGRAM = EXAMPLES / "training.py"
EVERY = 5  # epochs per checkpoint, as in the program
TRIES = 5  # fresh starts, should the run be over before its last kill

console = Console(highlight=False)


@dataclass
class Story:
    """What happened in one folder."""

    folder: Path
    seconds: float = 0.0
    deaths: list[str] = field(default_factory=list)
    _seen: int = 0  # lines of events.log that earlier lives have written

    def run(self, command: list[str], moment: float | None = None, pace: float = 0.0) -> bool:
        """Start the program; False if it was killed: at moment 7.5 half an epoch after epoch 7 has begun."""
        self._seen, begun = len(self.lines("events.log")), len(self.lines("epochs.log"))
        console.print(f"\n[bold cyan]$[/][cyan] {shown(command)}[/]")
        began = time.monotonic()
        child = subprocess.Popen(command, cwd=self.folder, env=environment(self.folder.parent))
        if moment is not None:
            while child.poll() is None and int(moment) > self._epoch(begun):
                time.sleep(0.002)
            with suppress(subprocess.TimeoutExpired):
                child.wait(moment % 1 * pace)
            child.kill()
        child.wait()
        self.seconds += time.monotonic() - began
        if child.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"the training failed with status {child.returncode}")
        if child.returncode == 0:
            return True
        if console.is_terminal:
            console.show_cursor()  # a killed program cannot do that itself,
            console.print()  # nor end its line
        where = self.where()
        self.deaths.append(where)
        console.print(f"  [red]SIGKILL[/] to pid {child.pid} at {self.seconds:.2f} s: {where}")
        return False

    def _epoch(self, begun: int) -> int:
        """The epoch that this life has begun last; 0 if it has not come to one."""
        return int((self.lines("epochs.log")[begun:] or ["0"])[-1])

    def lines(self, name: str) -> list[str]:
        """Of a log that is no part of the session: nothing in it is taken back."""
        log = self.folder / name
        return log.read_text().splitlines() if log.exists() else []

    def where(self) -> str:
        """Where the program was, from the last event that it wrote down."""
        events = self.lines("events.log")[self._seen :]
        if not events:
            return "while it started"
        kind, step = events[-1].split()
        match kind:
            case "task_started" | "task_progress":
                return f"inside epoch {int(step) + 1}"
            case "task_ended" if int(step) % EVERY == 0:
                return f"inside the save after epoch {step}"
            case "session_ended":
                return "after its last checkpoint"
            case _:
                return f"between epochs {step} and {int(step) + 1}"


def environment(folder: Path) -> dict[str, str]:
    """Nothing outside of the demo's folder is touched: the key that seals checkpoints is made there."""
    return os.environ | {"XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}


def shown(command: list[str]) -> str:
    return " ".join(["python", "examples/training.py", *command[2:]])


def killed(folder: Path, command: list[str], pace: float, moments: list[float]) -> Story:
    """Run until it has finished, with so many kills on the way."""
    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        story = Story(folder)
        for moment in moments:
            if story.run(command, moment, pace):
                console.print("  it has finished before it could be killed; once more, from the beginning")
                break
        else:
            story.run(command)
            return story
    raise SystemExit(f"{TRIES} runs finished before they could be killed: this machine is too busy")


# --- what is shown at the end -------------------------------------------------------------


def compare(straight: Story, broken: Story) -> bool:
    """Both results side by side; whether they are the same to the last bit."""
    results = [np.load(story.folder / "result.npz") for story in (straight, broken)]
    weights = [result["weights"] for result in results]
    table = Table(box=box.SIMPLE_HEAD, title="\nthe two results", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("left alone", justify="right")
    table.add_column(f"killed {len(broken.deaths)} times", justify="right")
    table.add_row(
        "digest of the weights", *(blake2b(w.tobytes(), digest_size=8).hexdigest() for w in weights)
    )
    for index in (0, len(weights[0]) // 2, -1):
        table.add_row(f"weight [{index % len(weights[0])}]", *(f"{w[index]:+.17g}" for w in weights))
    table.add_row("loss", *(f"{result['loss']:.17g}" for result in results))
    table.add_row("accuracy", *(f"{result['accuracy']:.2%}" for result in results))
    epochs = [story.lines("epochs.log") for story in (straight, broken)]
    table.add_row("epochs executed", *(str(len(begun)) for begun in epochs))
    table.add_row("epochs begun again", *(str(len(begun) - len(set(begun))) for begun in epochs))
    table.add_row("seconds", *(f"{story.seconds:.1f}" for story in (straight, broken)))
    console.print(table)
    return weights[0].tobytes() == weights[1].tobytes() and results[0]["loss"] == results[1]["loss"]


def list_checkpoints(story: Story) -> None:
    """What the command line says of the killed run."""
    console.print("[bold cyan]$[/][cyan] graflow-ckpt checkpoints list[/]")
    command = [sys.executable, "-m", "graflow_ckpt", "checkpoints", "list"]
    subprocess.run(command, cwd=story.folder, env=environment(story.folder.parent), check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    command = [sys.executable, str(PROGRAM), "--epochs", str(options.epochs)]

    with tempfile.TemporaryDirectory(prefix="graflow-ckpt-demo-") as name:
        folder = Path(name)
        console.print("[bold]1  The training, left alone[/]")
        straight = Story(folder / "straight")
        straight.folder.mkdir()
        straight.run(command)
        console.print(f"  finished in {straight.seconds:.1f} s")

        console.print(f"\n[bold]2  The same training, killed {options.kills} times[/] (seed {options.seed})")
        draw = random.Random(options.seed)
        moments = sorted(draw.uniform(0, options.epochs) for _ in range(options.kills))
        broken = killed(folder / "killed", command, straight.seconds / options.epochs, moments)
        console.print("  finished")

        same = compare(straight, broken)
        list_checkpoints(broken)
    words = "[green]The same weights, to the last bit." if same else "[red]THE WEIGHTS DIFFER."
    console.print(f"\n{words}[/]\n[dim]The same draw again: make demo ARGS='--seed {options.seed}'[/]")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
