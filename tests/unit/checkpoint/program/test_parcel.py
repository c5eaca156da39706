"""A program as it travels: what its head tells before anything is opened, and what is refused."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from graflow_ckpt import task
from graflow_ckpt._restore import PYTHON
from graflow_ckpt.checkpoint.program import parcel as parcels
from graflow_ckpt.checkpoint.program.parcel import (
    Parcel,
    differing,
    digest_of,
    make,
    references,
    unpack,
)
from graflow_ckpt.checkpoint.program.program import Fingerprint
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


MODULE = "tests.unit.checkpoint.named"


def local(n: int) -> int:
    return named.helper(n)


def closure(n: int) -> object:
    def inner() -> int:
        return local(n)

    return inner


def test_functions_of_a_module_are_looked_up_decorated_or_not() -> None:
    found = references({"plain": named.helper, "task": named.step.func})

    assert found.by_value == ()
    assert found.uses == {}


def test_lambdas_closures_partials_and_objects_travel() -> None:
    bodies = {
        "lambda": lambda: 1,
        "closure": closure(1),
        "partial": functools.partial(named.helper, 1),
        "object": named.Caller(),
        "method": named.Caller().call,
    }

    assert references(bodies).by_value == tuple(bodies)  # type: ignore[arg-type]


def test_of_what_travels_it_is_known_what_it_takes_from_modules() -> None:
    found = references({"closure": closure(1)})  # type: ignore[dict-item]

    assert list(found.uses) == [f"{__name__}:local"]  # which takes the rest itself


def test_what_a_lambda_calls_through_another_closure_is_found() -> None:
    once = closure(1)

    assert list(references({"twice": lambda: once()}).uses) == [f"{__name__}:local"]  # type: ignore[operator]


def test_a_task_of_a_module_that_is_called_by_code_that_travels_is_compared_too() -> None:
    found = references({"calls": lambda: named.step.func(1), "uses": lambda: named.Caller().call()})

    assert set(found.uses) == {f"{MODULE}:step", f"{MODULE}:Caller"}


def test_what_is_used_and_is_another_one_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = {f"{MODULE}:helper": references({"l": lambda: named.helper(1)}).uses[f"{MODULE}:helper"]}
    assert differing(uses) == []

    monkeypatch.setattr(named, "helper", lambda n: 3 * n)
    assert differing(uses) == [f"{MODULE}:helper"]

    monkeypatch.delattr(named, "helper")
    assert differing(uses) == [f"{MODULE}:helper"]


def test_a_module_that_is_not_here_is_no_difference() -> None:
    assert differing({"no.such.module:helper": Fingerprint("3.11", "0")}) == []


@pytest.fixture
def shipped() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(named)
    yield
    cloudpickle.unregister_pickle_by_value(named)


@pytest.mark.usefixtures("shipped")
def test_a_module_that_is_registered_to_travel_does() -> None:
    assert references({"task": named.step.func, "plain": named.helper}).by_value == ("task", "plain")


def test_a_program_that_is_run_has_no_names_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "lib.py").write_text("def scale(n): return 2 * n\n")
    (tmp_path / "program.py").write_text(
        "from lib import scale\n"
        "from graflow_ckpt.checkpoint.program.parcel import references\n"
        "def body(): return helper()\n"
        "def helper(): return scale(1)\n"
        "found = references({'body': body})\n"
        "print(found.by_value, *found.uses)\n"
    )

    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.stdout == "('body',) lib:scale\n", done.stderr


def test_a_package_is_compared_in_the_same_way_installed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, factor in (("src", 2), ("1/site-packages", 2), ("2/site-packages", 3)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "shared_lib.py").write_text(f"def scale(n): return {factor} * n\n")

    def loaded(place: str) -> None:
        monkeypatch.delitem(sys.modules, "shared_lib", raising=False)
        monkeypatch.syspath_prepend(tmp_path / place)

    loaded("src")
    scale = importlib.import_module("shared_lib").scale
    uses = references({"l": lambda: scale(1)}).uses
    assert list(uses) == ["shared_lib:scale"]

    loaded("1/site-packages")
    assert differing(uses) == []
    loaded("2/site-packages")
    assert differing(uses) == ["shared_lib:scale"]
    monkeypatch.delitem(sys.modules, "shared_lib", raising=False)
