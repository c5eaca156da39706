"""A group that failed its session: its lost members are mended, and the same command goes on."""

from __future__ import annotations

import pytest

from graflow_ckpt import AtLeast, group, task
from graflow_ckpt import workflow as in_memory
from graflow_ckpt.core.errors import GroupFailed
from graflow_ckpt.engine.settings import Durability
from tests.acceptance.places import Make

RAN: list[str] = []
BROKEN: set[str] = set()


def body(name: str) -> None:
    RAN.append(name)
    if name in BROKEN:
        raise RuntimeError(name)


def run(workflow: Make, broken: set[str], durability: Durability = "checkpoint") -> object:
    """Two of three members have to succeed; one of them is a chain, one a group of its own."""
    RAN.clear()
    BROKEN.clear()
    BROKEN.update(broken)

    with workflow("w", session_id="s", durability=durability, max_parallel=1) as flow:

        @task
        def start() -> None:
            body("start")

        @task
        def plain() -> None:
            body("plain")

        @task
        def head() -> None:
            body("head")

        @task
        def tail() -> None:
            body("tail")

        @task
        def left() -> None:
            body("left")

        @task
        def right() -> None:
            body("right")

        @task
        def after() -> str:
            body("after")
            return "done"

        inner = group(left, right, policy=AtLeast(2))
        start >> group(plain, head >> tail, inner, policy=AtLeast(2)) >> after
        return flow.execute("start")


@pytest.mark.parametrize(
    ("broken", "again"),
    [
        ({"head", "left"}, ["head", "left", "tail", "after"]),
        ({"plain", "tail"}, ["plain", "tail", "after"]),
        ({"plain", "head", "left", "right"}, ["plain", "head", "left", "right", "tail", "after"]),
    ],
)
def test_its_lost_members_run_again_and_no_other(workflow: Make, broken: set[str], again: list[str]) -> None:
    with pytest.raises(GroupFailed):
        run(workflow, broken)

    assert run(workflow, set()) == "done"

    assert sorted(RAN) == sorted(again)
    assert RAN[-1] == "after"


def test_it_fails_again_as_long_as_too_few_are_mended(workflow: Make) -> None:
    with pytest.raises(GroupFailed):
        run(workflow, {"plain", "head", "left"})
    with pytest.raises(GroupFailed):
        run(workflow, {"plain", "head"})

    assert run(workflow, {"head"}) == "done"


def test_a_journal_has_it_too() -> None:
    with pytest.raises(GroupFailed):
        run(in_memory, {"head", "left"}, "journal")

    assert run(in_memory, set(), "journal") == "done"

    assert sorted(RAN) == ["after", "head", "left", "tail"]
