"""A program as it travels: what its head tells before anything is opened, and what is refused."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from graflow_ckpt import task
from graflow_ckpt.checkpoint import parcel as parcels
from graflow_ckpt.checkpoint.parcel import PYTHON, Parcel, digest_of, make, unpack
from graflow_ckpt.core.errors import CheckpointCorrupt, NotStorable, SchemaUnsupported
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from tests.unit.checkpoint import named


def graph_of(*tasks: Task) -> TaskGraph:
    graph = TaskGraph()
    for one in tasks:
        graph.add(one)
    graph.compile([one.name for one in tasks])
    return graph


def travelling(value: Any) -> Task:
    return Task("travels", lambda: named.helper(value))


def changed(packed: bytes, **head: Any) -> bytes:
    """With another head."""
    size, _, rest = packed.partition(b"\n")
    known = json.loads(rest[: int(size)]) | head
    text = json.dumps(known).encode()
    return b"%d\n%b%b" % (len(text), text, rest[int(size) :])


def test_a_parcel_comes_back_with_all_that_its_head_says() -> None:
    parcel = make(
        graph_of(named.step, travelling(1)), "flow", {"a": 1}, "flows.py", calls=True, given=["y", "x"]
    )

    back = unpack(parcel.pack())

    assert back.pack() == parcel.pack()
    assert (back.program.workflow, back.program.file, back.calls, back.given) == (
        "flow",
        "flows.py",
        True,
        ("x", "y"),
    )
    assert (back.values, back.python) == ({"travels"}, PYTHON)
    assert [name for name, _ in back.uses] == ["tests.unit.checkpoint.named:helper"]
    assert back.settings() == {"a": 1}
    assert [node.func for node in back.graph().nodes.values() if node.name == "step"] == [named.step.func]


def test_the_same_program_has_the_same_digest_and_another_has_another() -> None:
    def packed(value: int) -> bytes:
        return make(graph_of(named.step, travelling(value)), "flow", None).pack()

    assert digest_of(packed(1)) == digest_of(packed(1)) != digest_of(packed(2))


def test_code_that_travels_is_bound_to_the_python_that_packed_it() -> None:
    assert not make(graph_of(named.step), "flow", None).bound
    assert make(graph_of(travelling(1)), "flow", None).bound
    assert make(graph_of(named.step), "flow", [lambda: 1]).bound  # middleware, for instance


def test_the_summary_is_that_of_what_is_looked_up_by_name() -> None:
    def summary(*tasks: Task) -> str:
        return make(graph_of(*tasks), "flow", None).summary

    assert summary(named.step, travelling(1)) == summary(named.step, travelling(2)) == summary(named.step)
    assert summary(named.step.bind(id="other")) != summary(named.step)


def test_code_that_cannot_travel_is_refused_by_the_name_of_its_task() -> None:
    lock = threading.Lock()

    @task
    def locked() -> bool:
        return lock.locked()

    with pytest.raises(NotStorable, match="the code of task locked"):
        make(graph_of(locked), "flow", None)


def test_a_parcel_of_a_newer_version_is_left_alone() -> None:
    packed = make(graph_of(named.step), "flow", None).pack()

    with pytest.raises(SchemaUnsupported, match="newer version"):
        unpack(changed(packed, format=parcels.FORMAT + 1))


@pytest.mark.parametrize("packed", [b"", b"12", b"2\n{}", b"x\n{}", b'12\n{"format": 1}'])
def test_what_does_not_hold_together_is_corrupt(packed: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match="does not hold together"):
        unpack(packed)


def test_nothing_is_opened_before_it_is_asked_for() -> None:
    parcel = make(graph_of(named.step), "flow", None)

    back = unpack(changed(parcel.pack(), code=0))  # then it is no pickle

    assert isinstance(back, Parcel)
    with pytest.raises(CheckpointCorrupt):
        back.graph()
