"""A training loop that can be killed at any moment: `python examples/training.py`, again and again.

Each epoch is one `next_iteration`. The weights and the momentum are changed in place and never
set again; the generator that shuffles the minibatches is a value of the session, so a run that
was killed draws the same batches as one that was not. Every fifth epoch asks for a checkpoint.

Needs numpy. Writes, beside `checkpoints/`, what `demo.py` looks at from outside: `result.npz`
when it has finished, `epochs.log` (a line per epoch begun, also if it is run again) and
`events.log` (what the engine told its observers).
"""

from __future__ import annotations

import argparse
import os
import sys

# One thread: several may add up numbers in another order, and then no two runs agree to the last bit.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from spirals import SAMPLES, evaluate, gradient, new_weights

from graflow_ckpt import Event, TaskExecutionContext, task, workflow

BATCH = 100
EVERY = 5  # epochs per checkpoint

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
options.add_argument("--epochs", type=int, default=40)
options.add_argument("--session", default="spirals")
arguments = options.parse_args()
EPOCHS = arguments.epochs


@task(inject_context=True)
def train(context: TaskExecutionContext) -> dict[str, float]:
    """One epoch, and then this task again."""
    channel = context.get_channel()
    epoch = channel.get("epoch", default=0) + 1
    if epoch == 1:
        channel.set("weights", new_weights())
        channel.set("momentum", np.zeros_like(new_weights()))
        channel.set("shuffle", np.random.default_rng(7))
    weights, momentum, shuffle = (channel.get(name) for name in ("weights", "momentum", "shuffle"))

    note("epochs.log", f"{epoch}")
    for batch in np.split(shuffle.permutation(SAMPLES), SAMPLES // BATCH):
        momentum *= 0.9
        momentum -= 0.1 * gradient(weights, batch)
        weights += momentum  # in place: what was got and then changed counts as set

    metrics = evaluate(weights)
    channel.set("epoch", epoch)
    context.progress(epoch, EPOCHS)
    if epoch % EVERY == 0:
        context.checkpoint(metadata={"epoch": epoch, **metrics})  # taken when this epoch is committed
    if epoch < EPOCHS:
        context.next_iteration()
    return metrics


# --- what can be seen from outside --------------------------------------------------------


def note(file: str, line: str) -> None:
    """One append, so that a killed writer leaves whole lines."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


class Display:
    """An observer: a bar on a terminal, and every event as a line of `events.log`."""

    def __init__(self) -> None:
        shown = (BarColumn(40), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.bar = Progress(
            TextColumn("  epoch"), MofNCompleteColumn(), *shown, disable=not sys.stdout.isatty()
        )
        self.row = self.bar.add_task("", total=EPOCHS)

    def __call__(self, event: Event) -> None:
        match event.kind:
            case "session_started":
                words = f"goes on after epoch {event.step}" if event.facts["resumed"] else ""
                self.bar.update(self.row, completed=event.step, description=words)
                self.bar.start()
            case "task_progress":
                self.bar.update(self.row, completed=event.facts["done"])
            case "checkpoint_saved":
                self.bar.update(self.row, description=f"checkpoint after epoch {event.step}")
            case "session_ended":
                self.bar.stop()
        note("events.log", f"{event.kind} {event.step}")


with workflow("spirals", session_id=arguments.session, observers=[Display()]) as ctx:
    metrics = ctx.execute(train)
    weights = ctx.get_channel().get("weights")

with open("result.npz", "wb") as file:
    np.savez(file, weights=weights, **metrics)
