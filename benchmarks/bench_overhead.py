"""What does the engine cost per task that does nothing?

Method: CPU time of the whole process, all threads, for `execute` on a chain of 20,000 tasks with the settings
that a user gets (no session id, durability="checkpoint", nothing is cut): graph check, first claim, every
task, result. Writing the chain down comes before and is shown by itself. Unit: µs per task. The floor: a
bare loop that calls the same functions.
A regression: work per task that belongs to the graph (once) or to those who ask for it; anything per task
that grows with the number of tasks.
"""

from __future__ import annotations

from benchmarks.harness import AtMost, Case, Run
from benchmarks.programs import Body, chain, functions, noop, numbered, place
from graflow_ckpt import task, workflow

NAME = "overhead"

PASSING = """\
def t{n}(context, {before}=0):
    context.get_channel().set("seen", {before})
    return {before} + 1
"""


def many(run: Run) -> int:
    return run.size(20_000, smoke=500)


# --- one body ----------------------------------------------------------------------------


def no_op(run: Run) -> None:
    count = many(run)
    with workflow("chain", store=place(run)) as flow:
        chain(numbered(count))
        with run.timed(per=count):
            flow.execute()
    assert flow.execution_context.steps == count


def bare_calls(run: Run) -> None:
    call_all(run, [noop] * many(run))


def call_all(run: Run, bodies: list[Body]) -> None:
    with run.timed(per=len(bodies)):
        for body in bodies:
            body()


# --- a body each -------------------------------------------------------------------------


def distinct(run: Run) -> None:
    count = many(run)
    with workflow("chain", store=place(run)) as flow:
        chain([task(body) for body in functions(count, "def t{n}(): pass")])
        with run.timed(per=count):
            flow.execute()
    assert flow.execution_context.steps == count


def bare_distinct(run: Run) -> None:
    call_all(run, functions(many(run), "def t{n}(): pass"))


# --- a parameter and a write -------------------------------------------------------------


def passing(run: Run) -> None:
    """Each task takes the number that the one before has returned, sets it and returns the next one."""
    count = many(run)
    with workflow("chain", store=place(run)) as flow:
        chain([task(inject_context=True)(body) for body in functions(count, PASSING)])
        with run.timed(per=count):
            result = flow.execute()
    assert result == count
    assert flow.get_channel().get("seen") == count - 1


class Dictionary:
    """The least that a channel can be."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.set = self.values.__setitem__

    def get_channel(self) -> Dictionary:
        return self


def bare_passing(run: Run) -> None:
    bodies = functions(many(run), PASSING)
    context = Dictionary()
    with run.timed(per=len(bodies)):
        result = 0
        for body in bodies:
            result = body(context, result)


# --- before the run ----------------------------------------------------------------------


def writing_down(run: Run) -> None:
    count = many(run)
    tasks = numbered(count)
    with workflow("chain", store=place(run)) as flow, run.timed(per=count):
        chain(tasks)
        _ = flow.graph


CASES = [
    Case("no-op task", no_op, bare_calls, AtMost(15, "µs"), unit="µs", clock="cpu", repetitions=11),
    Case(
        "… with a channel write and a parameter from upstream",
        passing, bare_passing, AtMost(25, "µs"), unit="µs", clock="cpu", repetitions=11,
    ),
    Case("no-op task, 20,000 functions", distinct, bare_distinct, None, unit="µs", clock="cpu"),
    Case("writing the chain down", writing_down, None, None, unit="µs", clock="cpu"),
]  # fmt: skip
