"""The program in a checkpoint: graph, fingerprints and code, which never makes a save fail."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from typing import Any

import pytest

from graflow_ckpt.checkpoint.program.program import (
    Missing,
    SavedTask,
    current_tasks,
    describe,
    pack_code,
    pack_task,
    pack_whole_code,
    saved_tasks,
    shown,
    summary_of,
    unpack_code,
    unpack_task,
)
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import CheckpointError, NotStorable
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import All, Group, Options, Task


def one() -> int:
    return 1


def other() -> int:
    return 2


BOX: list[int] = []


def unseen() -> int:
    return len(BOX)


def graph_of(**tasks: Any) -> TaskGraph:
    graph = TaskGraph()
    for name, func in tasks.items():
        graph.add(Task(name, func, Options(max_retries=2), {"x": 1} if name == "bound" else {}))
    return graph


def compiled(graph: TaskGraph, *edges: str) -> TaskGraph:
    for source, target in edges:
        graph.add_edge(source, target)
    graph.compile(graph.roots())
    return graph


def same(task: Task) -> Task:
    return task


def facts_of(state: SessionState, graph: TaskGraph) -> dict[str, Any]:
    facts = capture(state, begun=state.claimed).facts | {"graph": describe(graph, current_tasks(graph))}
    back: dict[str, Any] = json.loads(json.dumps(facts))
    return back


# --- facts -----------------------------------------------------------------------------


def test_the_facts_of_a_graph_are_json_with_what_each_task_follows() -> None:
    graph = compiled(graph_of(a=one, b=other), "ab")
    graph.add(Group("g", All(), ("b",), frozenset("b")))
    compiled(graph, "bg")

    facts = json.loads(json.dumps(describe(graph, current_tasks(graph))))

    assert {name: entry["after"] for name, entry in facts["tasks"].items()} == {
        "a": [],
        "b": ["a"],
        "g": ["b"],
    }
    assert facts["tasks"]["g"]["print"] is None
    assert facts["tasks"]["a"]["print"] != facts["tasks"]["b"]["print"]


def test_the_digest_of_a_graph_is_that_of_its_edges() -> None:
    def digest(*edges: str) -> str:
        graph = compiled(graph_of(a=one, b=one, c=one), *edges)
        return str(describe(graph, current_tasks(graph))["digest"])

    assert digest("ab", "bc") == digest("bc", "ab")
    assert digest("ab", "bc") != digest("ab", "ac")


def test_tasks_made_at_run_time_are_not_the_programs() -> None:
    graph = compiled(graph_of(a=one, b=other), "ab")
    graph.extend("a", Task("made", one), ("b",))

    assert [task.name for task in current_tasks(graph)] == ["a", "b"]


def test_what_became_of_each_task_is_read_from_the_facts() -> None:
    graph = compiled(graph_of(a=one, b=one, c=one, d=one, e=one, f=one), "ab", "ac", "bd", "cd")
    state = SessionState("s", ("a",))
    enqueue = [graph.routes[name].enqueue() for name in "abc"]
    apply(state, [*enqueue, ("claim", 3)], 0.0)
    apply(state, [("end", 1, 1, "completed", b"\xc0"), graph.routes["d"].arrive(1), ("skipped", "e")], 0.0)
    apply(state, [("end", 2, 2, "failed", "E: no"), ("task", "made", b"\x01")], 0.0)
    apply(state, [("enqueue", "gone", None, 0, 0, "default", "direct")], 0.0)
    apply(state, [("enqueue", "made", None, 0, 0, "default", "direct")], 0.0)
    facts = facts_of(state, graph)

    saved = {task.name: task for task in saved_tasks(facts)}

    assert {name: task.state for name, task in saved.items()} == {
        "a": "completed",
        "b": "failed",
        "c": "running",
        "d": "waiting",
        "e": "skipped",
        "f": "unreached",
        "gone": "pending",
    }
    assert saved["d"].after == ("b", "c")
    assert saved["a"].fingerprint == current_tasks(graph)[0].fingerprint
    assert saved["gone"] == SavedTask("gone", "pending")


def test_a_group_that_is_through_counts_as_completed() -> None:
    graph = compiled(graph_of(a=one))
    graph.add(Group("g", All(), ("a",), frozenset("a")))
    compiled(graph, "ag")
    state = SessionState("s", ("a",))
    state.passed["g"] = 1

    facts = capture(state, begun=state.claimed).facts | {"graph": describe(graph, current_tasks(graph))}

    (saved,) = (task for task in saved_tasks(facts) if task.name == "g")
    assert (saved.state, saved.fingerprint) == ("completed", None)


# --- code ------------------------------------------------------------------------------


def test_a_graph_comes_back_from_its_code() -> None:
    factor = 3
    graph = graph_of(a=one, closure=lambda: factor, bound=lambda x: x * factor)
    graph.add(Group("g", All(), ("a",), frozenset("a")))
    graph.add_edge("a", "g")

    back = unpack_code(pack_code(graph), same)

    assert (list(back.nodes), list(back.edges())) == (["a", "closure", "bound", "g"], [("a", "g")])
    closure, bound = back.nodes["closure"], back.nodes["bound"]
    assert isinstance(closure, Task)
    assert isinstance(bound, Task)
    assert (closure.func(), bound.func(**bound.arguments)) == (3, 3)
    assert bound.options.max_retries == 2


def test_a_task_of_the_running_program_may_take_the_place_of_the_one_in_the_checkpoint() -> None:
    mine = Task("a", other)

    back = unpack_code(pack_code(graph_of(a=one, b=one)), lambda task: mine if task.name == "a" else task)

    assert back.nodes["a"] is mine


def test_code_that_cannot_be_pickled_is_kept_by_name_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            pass

    graph = graph_of(a=one, locked=locked)
    graph.add(Group("g", All(), ("a",), frozenset("a")))
    with caplog.at_level(logging.WARNING):
        back = unpack_code(pack_code(graph), same)

    assert "the code of task locked is kept by name only" in caplog.text
    assert "task a " not in caplog.text
    node = back.nodes["locked"]
    assert isinstance(node, Task)
    assert isinstance(node.func, Missing)
    with pytest.raises(
        CheckpointError, match=r"code of task 'locked' is not in the checkpoint: .*locked"
    ) as caught:
        node.func(1, x=2)
    assert "Resume from the program that defines it" in caught.value.hint


def test_an_argument_that_cannot_be_pickled_is_no_reason_to_fail_either() -> None:
    graph = TaskGraph()
    graph.add(Task("a", one, arguments={"lock": threading.Lock()}))

    node = unpack_code(pack_code(graph), same).nodes["a"]

    assert isinstance(node, Task)
    assert node.arguments == {}


def test_code_that_is_all_that_somebody_will_have_is_packed_whole_or_refused_by_the_task() -> None:
    lock = threading.Lock()

    def locked() -> bool:
        return lock.locked()

    with pytest.raises(NotStorable, match=r"the code of task second.* cannot be stored") as raised:
        pack_whole_code(compiled(graph_of(first=one, second=locked)))
    assert raised.value.path.startswith("the code of task second")

    graph = graph_of(first=one)
    graph.add(Task("second", other, arguments={"x": lock}))
    with pytest.raises(NotStorable, match=r"the arguments of task second.* cannot be stored"):
        pack_whole_code(compiled(graph))

    whole = compiled(graph_of(first=one, second=other))
    assert pack_whole_code(whole) == pack_code(whole)


LARGE = """
from graflow_ckpt.checkpoint.program.program import pack_code, pack_whole_code
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
table = bytes(2 << 20)
def count(): return len(table)
graph = TaskGraph()
graph.add(Task("count", count))
graph.compile(["count"])
for pack in (pack_code, pack_whole_code):
    pack(graph)
"""


def test_a_name_in_main_is_not_enough_for_somebody_who_has_another_main() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=False)

    assert "the code of task count cannot be stored" in done.stderr
    assert "count of __main__ uses more than 1 MiB of global data" in done.stderr


def test_a_task_made_at_run_time_comes_back_with_its_place() -> None:
    task = Task("made", lambda x: x + 1, Options(priority=3), {"x": 4})

    back, spawner, before = unpack_task(pack_task(task, "a", ("b", "c")))

    assert (back.name, back.options, back.arguments) == ("made", task.options, {"x": 4})
    assert (back.func(x=4), spawner, before) == (5, "a", ("b", "c"))


def test_a_task_made_at_run_time_without_a_checkpoint_is_itself() -> None:
    task = Task("made", one)

    assert unpack_task(Live((task, "a", ()))) == (task, "a", ())


def test_a_task_made_at_run_time_that_cannot_be_pickled_is_refused_by_its_name() -> None:
    lock = threading.Lock()

    with pytest.raises(NotStorable, match="made"):
        pack_task(Task("made", lambda: lock), "a", ())


# --- a program that has not changed ----------------------------------------------------


def test_a_summary_of_a_graph_tells_other_code_edges_and_starts_apart() -> None:
    def summary(*edges: str, start: str = "a", **tasks: Any) -> str:
        graph = graph_of(a=one, b=other, c=one, **tasks)
        compiled(graph, *edges).compile((start,))
        return summary_of(graph)

    assert summary("ab", "bc") == summary("ab", "bc")
    assert (
        len({summary("ab", "bc"), summary("ab", "ac"), summary("ab", "bc", start="b"), summary(d=one)}) == 4
    )


def test_a_summary_is_that_of_the_program_also_when_tasks_were_made() -> None:
    graph = compiled(graph_of(a=one, b=other), "ab")
    before = summary_of(graph)
    graph.extend("a", Task("made", one), ("b",))

    assert summary_of(graph) == before


def test_of_an_unchanged_program_the_tasks_with_a_note_are_told() -> None:
    graph = compiled(graph_of(a=one, b=one, c=unseen), "ab", "bc")
    state = SessionState("s", ("a",))
    apply(state, [graph.routes["a"].enqueue(), ("claim", 1)], 0.0)
    apply(state, [("end", 1, 1, "completed", b"\xc0"), graph.routes["b"].enqueue(), ("claim", 1)], 0.0)
    facts = facts_of(state, graph)

    assert [(task.name, task.state) for task in saved_tasks(facts, noted=True)] == [
        ("b", "running"),
        ("c", "unreached"),
    ]


def test_arguments_are_shown_as_values_where_json_has_them_and_as_types_elsewhere() -> None:
    given = {
        "rows": [1, "x"],
        "password": "hunter2",
        "pair": (1, 2),
        "nan": float("nan"),
        "of": Missing,
        "long": "y" * 2000,
    }

    found = shown(given)

    assert found["rows"] == {"value": [1, "x"]}
    assert "hunter2" not in json.dumps(found)
    assert [found[name] for name in ("pair", "nan", "of", "long")] == [
        {"type": "builtins.tuple"},
        {"type": "builtins.float"},
        {"type": "builtins.type"},
        {"type": "builtins.str"},
    ]
