"""First programs of other libraries' tutorials survive a kill with nothing set but a session id.

Each is killed once and run twice more: no completed task runs again, and each run says what it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.processes import LONG

PROGRAM = [sys.executable, "program.py"]
HEAD = """
import os
from graflow_ckpt import Backoff, group, task, workflow
def say(line):
    with open("started", "a") as file:
        file.write(line + "\\n")
    if line == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), 9)
"""
STEPS_AND_A_QUEUE = """
@task
def step_one():
    say("step_one")
    return "one"
@task
def step_two(step_one):
    say("step_two")
    return step_one + " two"
@task
def work(n):
    say(f"work {n}")
    return n * n
@task(inject_context=True)
def enqueue(context):
    say("enqueue")
    for n in range(10):
        context.next_task(work.bind(n=n, id=f"work_{n}"), before="collect")
@task(inject_context=True)
def collect(context):
    say("collect")
    return context.get_result("step_two"), [context.get_result(f"work_{n}") for n in range(10)]
with workflow("steps", session_id="first") as flow:
    step_one >> step_two >> enqueue >> collect
    print(flow.execute(max_steps=100))
"""
CHAIN_AND_CHORD = """
@task
def add(x, y):
    say(f"add {x} {y}")
    return x + y
@task
def times(first, factor):
    say("times")
    return first * factor
@task
def total(header):
    say("total")
    return sum(header.values())
with workflow("chord", session_id="first") as flow:
    header = group(*[add.bind(x=n, y=n, id=f"add_{n}") for n in range(4)], name="header")
    add.bind(x=2, y=3, id="first") >> times.bind(factor=8) >> header >> total
    print(flow.execute())
"""
RETRIES_AND_MAPPING = """
@task
def repositories():
    say("repositories")
    return ["a", "b", "c"]
@task(max_retries=2, backoff=Backoff(0.001))
def stars(repo):
    if repo == "b" and not os.path.exists("tried"):
        os.mkdir("tried")
        raise ConnectionError("not yet")
    say(f"stars {repo}")
    return ord(repo)
@task(inject_context=True)
def each(context, repositories):
    say("each")
    for repo in repositories:
        context.next_task(stars.bind(repo=repo, id=f"stars_{repo}"), before="report")
@task(inject_context=True)
def report(context):
    say("report")
    return {repo: context.get_result(f"stars_{repo}") for repo in "abc"}
with workflow("mapping", session_id="first") as flow:
    repositories >> each >> report
    print(flow.execute())
"""
STATE_GRAPH = """
def answer(context, who, other):
    messages = context.get_channel().get("messages", default=[])
    messages.append(f"{who} {len(messages)}")
    say(messages[-1])
    if len(messages) < 9:
        context.next_task(other, goto=True)
@task(inject_context=True)
def agent(context):
    answer(context, "agent", tool)
@task(inject_context=True)
def tool(context):
    answer(context, "tool", agent)
@task
def end(messages):
    say("end")
    return messages
with workflow("graph", session_id="first") as flow:
    agent >> end
    print(flow.execute())
"""


def run(kill_at: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KILL_AT": kill_at}
    return subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, timeout=LONG, check=False)


@pytest.mark.parametrize(
    ("program", "kill_at", "result"),
    [
        (STEPS_AND_A_QUEUE, "collect", ("one two", [n * n for n in range(10)])),
        (CHAIN_AND_CHORD, "total", 12),
        (RETRIES_AND_MAPPING, "report", {"a": 97, "b": 98, "c": 99}),
        (STATE_GRAPH, "tool 5", [f"{('agent', 'tool')[n % 2]} {n}" for n in range(9)]),
    ],
    ids=["steps and a queue", "chain and chord", "retries and mapping", "state graph"],
)
def test_a_first_program_survives_a_kill_with_only_an_id(program: str, kill_at: str, result: Any) -> None:
    Path("program.py").write_text(HEAD + program)

    killed, again, third = run(kill_at), run(), run()

    assert killed.returncode == -9, killed.stderr
    assert (again.returncode, third.returncode) == (0, 0), again.stderr + third.stderr
    assert again.stdout == third.stdout == f"{result}\n"
    assert [line for line, n in Counter(Path("started").read_text().splitlines()).items() if n > 1] == [
        kill_at
    ]
    assert again.stderr.startswith("session first continues from step ")
    assert third.stderr.startswith("session first was finished ")
    assert (again.stderr + third.stderr).count("\n") == 2
