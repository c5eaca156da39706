"""Programs that a kill meets anywhere; a log of executions that none can take back, and what came of them."""

from __future__ import annotations

import os
import random
import select
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy

from graflow_ckpt import Event, EveryN, EveryTask, Workflow
from tests.loops import chain, of


def note(line: str) -> None:
    """One line, one write, at the end of a file of the current folder."""
    fd = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


def begins(context: Any) -> None:
    """The first line of every body."""
    note(f"start {context.task_id} {context.cycle}")


def ended(event: Event) -> None:
    """An observer: told after the commit."""
    if event.kind == "task_ended" and event.facts["outcome"] == "done":
        note(f"end {event.task} -")


def final_state(flow: Workflow) -> dict[str, Any]:
    """All that has to be equal, as JSON can hold it."""
    context, channel = flow.execution_context, flow.get_channel()
    return {
        "status": context.status,
        "steps": context.steps,
        "completed": sorted(context.completed_tasks),
        "cycles": context.cycle_counts,
        "values": {name: _plain(channel.get(name)) for name in sorted(channel.keys())},
    }


def _plain(value: Any) -> Any:
    return value.tobytes().hex() if type(value).__name__ == "ndarray" else repr(value)


# --- a diamond on threads ---------------------------------------------------------------


ETL_FOLLOWS = {
    "clean": {"extract"}, "enrich": {"extract"}, "count": {"extract"},
    "load": {"clean", "enrich", "count"}, "report": {"load"},
}  # fmt: skip


def heard(*tasks: Any, **settings: Any) -> Workflow:
    """These, one after the other, in a session that is called like the workflow; ends are noted."""
    return chain(*tasks, session_id=settings["workflow"], observers=(ended,), **settings)


def etl(durability: Any) -> dict[str, Any]:
    def extract(context: Any) -> list[int]:
        begins(context)
        return [3, -1, 4, -1, 5]

    def clean(context: Any, extract: list[int]) -> list[int]:
        begins(context)
        context.channel.append("seen", 1)
        return [n for n in extract if n > 0]

    def enrich(context: Any, extract: list[int]) -> dict[int, str]:
        begins(context)
        context.channel.append("seen", 1)
        return {n: f"{n:+}" for n in extract}

    def count(context: Any, extract: list[int]) -> int:
        begins(context)
        context.channel.append("seen", 1)
        return len(extract)

    def load(context: Any, clean: list[int], enrich: dict[int, str], count: int) -> list[str]:
        begins(context)
        context.channel.set("loaded", [enrich[n] for n in clean] * count)
        return [enrich[n] for n in clean]

    def report(context: Any, load: list[str]) -> str:
        begins(context)
        return f"{len(load)} rows, {context.channel.get('seen')}"

    settings = {"durability": durability, "checkpoint": EveryTask(), "max_parallel": 3}
    flow = heard(extract, (clean, enrich, count), load, report, workflow="etl", **settings)
    flow.execute("extract")
    return final_state(flow)


# --- an order goes from state to state by goto; a charge fails once and is tried again ---


def orders(durability: Any) -> dict[str, Any]:
    def receive(context: Any) -> str:
        begins(context)
        context.channel.set("history", ["received"])
        context.next_task("check", goto=True)
        return "order 17"

    def check(context: Any) -> int:
        begins(context)
        context.channel.get("history").append(f"checked {context.cycle}")
        context.next_task("charge" if context.cycle else "correct", goto=True)
        return context.cycle

    def correct(context: Any) -> None:
        begins(context)
        context.channel.append("history", "corrected")
        context.checkpoint(metadata={"state": "corrected"})
        context.next_task("check", goto=True)

    def charge(context: Any) -> None:
        begins(context)
        context.channel.append("history", "charged")
        if context.attempt == 1:
            raise ConnectionError("the bank is closed")
        context.next_task("ship", goto=True)

    def ship(context: Any, data: Any = None) -> str:
        begins(context)
        context.channel.append("history", f"shipped {data}")
        if context.cycle < 2:
            context.next_iteration(context.cycle)
        return "done"

    flow = heard(
        receive, check, of(charge, max_retries=5), ship,
        workflow="order", durability=durability, checkpoint=EveryN(2),
    )  # fmt: skip
    flow.add(of(correct)).execute("receive")
    return final_state(flow)


# --- a training loop --------------------------------------------------------------------


def training(durability: Any) -> dict[str, Any]:
    random.seed(7)
    numpy.random.seed(7)
    samples = [(numpy.arange(4) * k % 5 / 5.0, k % 2) for k in range(12)]

    def epoch(context: Any) -> int:
        begins(context)
        channel = context.get_channel()
        weights = channel.get("weights")
        if weights is None:
            weights = numpy.random.standard_normal(4)
            channel.set("weights", weights)
        order = list(range(len(samples)))
        random.shuffle(order)
        for at in order:
            x, y = samples[at]
            weights += 0.1 * (y - 1.0 / (1.0 + numpy.exp(-(weights @ x)))) * x
        channel.append("losses", float(numpy.random.random()) + float(weights.sum()))
        if context.cycle % 2:
            context.checkpoint(metadata={"epoch": context.cycle})
        if context.cycle < 6:
            context.next_iteration()
        return int(context.cycle)

    def evaluate(context: Any, epoch: int) -> float:
        begins(context)
        weights = context.get_channel().get("weights", readonly=True)
        return float(weights @ weights) + epoch

    flow = heard(epoch, evaluate, workflow="training", durability=durability)
    flow.execute("epoch")
    return final_state(flow)


# --- a group whose members change one live array in place, each its own slice, two rounds of it ---


SHARED_FOLLOWS = {
    "left": {"prepare"},
    "middle": {"prepare"},
    "right": {"prepare"},
    "total": {"left", "middle", "right"},
}


def shared(durability: Any) -> dict[str, Any]:
    """Two rounds; what is added twice shows: a cut with half a member's work would end with other numbers."""

    def prepare(context: Any) -> None:
        begins(context)
        if context.cycle == 0:
            context.channel.set("shared", numpy.zeros(12))

    def member(context: Any) -> None:
        begins(context)
        at = ["left", "middle", "right"].index(context.task_id)
        array = context.channel.get("shared")
        for number in range(at * 4, at * 4 + 4):
            array[number] += (number + 1) * (context.cycle + 1)

    def total(context: Any) -> float:
        begins(context)
        context.channel.append("sums", float(context.channel.get("shared", readonly=True).sum()))
        if context.cycle == 0:
            context.next_task("prepare", goto=True)
        return float(context.cycle)

    settings = {"durability": durability, "checkpoint": EveryTask(), "max_parallel": 3}
    members = tuple(of(member, name) for name in ("left", "middle", "right"))
    flow = heard(prepare, members, total, workflow="shared", **settings)
    flow.execute("prepare")
    return final_state(flow)


# --- a program with a data loader -------------------------------------------------------


def start_loader() -> None:
    """It waits for its end: nobody ever writes to the pipe. One that is not seen ends by itself, and it holds
    no pipe on which somebody waits for the end of its parent."""
    if os.fork():
        return
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        note(f"loader {os.getpid()} 0")
        waits, _ = os.pipe()
        select.select([waits], [], [], 120)
    finally:
        os._exit(0)


def loading(durability: Any) -> dict[str, Any]:
    def work(context: Any) -> int:
        begins(context)
        if context.cycle == 1:
            start_loader()
        context.channel.append("done", context.cycle)
        if context.cycle < 5:
            context.next_iteration()
        return int(context.cycle)

    def end(context: Any, work: int) -> int:
        begins(context)
        return work * 2

    flow = heard(work, end, workflow="loading", durability=durability, checkpoint=EveryN(2))
    flow.execute("work")
    return final_state(flow)


# --- loops inside one task --------------------------------------------------------------


class Weights:
    """What has the two methods of a model."""

    def __init__(self) -> None:
        self.array = numpy.random.standard_normal(4)

    def state_dict(self) -> dict[str, Any]:
        return {"array": self.array}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.array[:] = state["array"]


def rounds(durability: Any) -> dict[str, Any]:
    """A loop in a loop, live state and plain, and a value of the channel that is changed in place."""
    random.seed(7)
    numpy.random.seed(7)

    def train(context: Any) -> list[Any]:
        begins(context)
        noise, weights, losses = random.random(), Weights(), []
        history = context.channel.get("history", default=[])
        state = {"weights": weights, "losses": losses}
        for epoch in context.rounds(range(4), name="epochs", state=state):
            weights.array *= 0.9
            for batch in context.rounds(random.sample("abc", 3), name="batches"):
                weights.array += noise * random.random()
                history.append(f"{epoch}{batch}")
            losses.append(float(weights.array.sum()))
            if epoch == 1:
                context.checkpoint({"loss": losses[-1]})
        return [weights.array.tobytes().hex(), losses]

    def report(context: Any, train: list[Any]) -> str:
        begins(context)
        return f"{train[0]} {len(train[1])}"

    flow = heard(train, report, workflow="rounds", durability=durability, checkpoint=EveryN(3))
    flow.execute("train")
    return final_state(flow)


class Program(NamedTuple):
    """One of them."""

    main: Callable[[Any], dict[str, Any]]
    follows: Mapping[str, set[str]]  # what starts only after what; gotos are in the bodies
    commits_at_once: bool = True


PROGRAMS = {
    "orders": Program(orders, {}),
    "training": Program(training, {"evaluate": {"epoch"}}),
    "etl": Program(etl, ETL_FOLLOWS),
    # a member's change is durable with the cut that follows when nothing is on loan
    "shared": Program(shared, SHARED_FOLLOWS, commits_at_once=False),
    "loading": Program(loading, {"end": {"work"}}),
    "rounds": Program(rounds, {"report": {"train"}}),
}
