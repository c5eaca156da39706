"""The tasks of a program (see model.py) as a fleet runs them, and what each execution writes down.

One line when a body begins and one when it ends, each with a single write to a file that is opened to
append: it is outside of Redis, and nothing that happens to a worker takes a line back. The names of the
file and of the pace are in the environment of the workers.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

from graflow_ckpt import AtLeast, BestEffort, group, task, workflow
from graflow_ckpt.frontends.dsl import Workflow
from tests.acceptance.program import Body, Fork, Part, Program, mix

RUNS = "CHAOS_RUNS"
PACE = "CHAOS_PACE"
"""By how much bodies are longer than some 30 ms on average."""


class Broken(Exception):
    """What a body raises that is to fail."""


@task(inject_context=True)
def play(context: Any, body: Body, made: dict[str, Body], data: Any = None) -> int:
    """Every task of a program: what it does stands in `body`."""
    note("began", context)
    seen = [body.constant, context.cycle, data, *(context.get_result(name) for name in body.reads)]
    time.sleep(length(body.name, context.cycle))
    channel = context.get_channel()
    for kind, name, number in body.ops:
        item = mix(number, context.cycle)
        if kind == "set":
            channel.set(name, mix(number, *seen))
        elif kind == "add":
            channel.set(name, channel.get(name, 0) + number)
        elif kind == "append":
            channel.append(name, item)
        else:
            channel.set(name, [*channel.get(name, []), item])
    if context._attempt.claim.spec.retry_count < body.flaky:  # not context.attempt: that counts deaths, too
        note("failed", context)
        raise Broken(body.name)
    ask(context, body.asks(context.cycle), made)
    note("ended", context)
    return mix(*seen)


def ask(context: Any, asks: tuple[Any, ...], made: dict[str, Body]) -> None:
    """Where it goes on."""
    verb = asks[0]
    if verb == "again":
        context.next_iteration(asks[1])
    elif verb == "goto":
        context.next_task(asks[1], goto=True)
    elif verb == "make":
        context.next_task(bound(made[asks[1]], {}), before=asks[2] or ())


def length(name: str, cycle: int) -> float:
    """Seconds: a few ms mostly, some that a signal will meet."""
    draw = mix(name, cycle, 3) % 100
    return (0.3 if draw < 3 else 0.004 + draw * 0.0005) * float(os.environ.get(PACE, "1"))


# --- what is written down --------------------------------------------------------------


def note(what: str, context: Any) -> None:
    """what, when, where, and of which attempt."""
    spec = context._attempt.claim.spec
    session = getattr(context._host, "_session", None)  # none where a session is in memory
    token = getattr(session, "token", "-")
    where = f"{time.time():.6f} {os.getpid()}"
    line = f"{what} {where} {spec.task_id} {spec.cycle} {spec.key} {spec.retry_count} {token}\n"
    os.write(_file(os.environ[RUNS]), line.encode())


@cache
def _file(name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


# --- the workflow ----------------------------------------------------------------------


def bound(body: Body, made: dict[str, Body]) -> Any:
    """A body as a task of its own name and options."""
    backoff = 0.1 if body.retries and mix(body.name) % 2 else 0.0
    options = {"max_retries": body.retries, "priority": body.priority, "backoff": backoff}
    mine = {ask[1]: made[ask[1]] for ask in body.visits if ask[0] == "make"}
    return task(inject_context=True, id=body.name, **options)(play.func).bind(body=body, made=mine)


def build(program: Program, session: str | None = None, **settings: Any) -> Workflow:
    """The workflow of a program."""
    made = {body.name: body for body in program.made}
    tasks: dict[str, Any] = {body.name: bound(body, made) for body in program.bodies}  # the block would take
    with workflow(
        "chaos", session, **settings
    ) as flow:  # what is decorated in it, besides what is bound of it
        for chain in program.chains:
            expression(chain, tasks)
    return flow


def expression(chain: tuple[Part, ...], known: dict[str, Any]) -> Any:
    """Join the tasks that are known as the chain has them; a group is made when it is met first."""
    parts = []
    for part in chain:
        if isinstance(part, Fork) and part.name not in known:
            members = [expression(member, known) for member in part.members]
            policy = {"all": None, "best": BestEffort(), "least": AtLeast(max(1, part.need))}[part.policy]
            known[part.name] = group(*members, policy=policy, name=part.name)
        parts.append(known[part if isinstance(part, str) else part.name])
    joined = parts[0]
    for part in parts[1:]:
        joined = joined >> part
    return joined
