"""What is found out before the first task, and what leaves no trace on the disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task, workflow
from graflow_ckpt.core.errors import CheckpointError, GraphError, ReadOnlyChanged
from tests.acceptance.places import LONG, Box
from tests.loops import chain


def ask_in_a_helper(context: Any) -> None:
    context.checkpoint()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, False),
        ({"session_id": "s"}, True),
        ({"session_id": "s", "durability": "none"}, False),
        ({"durability": "journal"}, True),
        ({"checkpoint": EveryTask()}, True),
    ],
)
def test_a_session_that_nobody_will_come_back_to_leaves_nothing_on_the_disk(
    options: dict[str, Any], kept: bool
) -> None:
    chain(a=lambda: None, **options).execute()

    trios = list(Path().glob("checkpoints/*.pkl"))
    assert bool(trios) == kept


def test_a_body_or_a_helper_that_asks_for_checkpoints_is_seen() -> None:
    inside: list[bool] = []

    def build(body: Any) -> Any:
        with workflow("w") as flow:
            task(id="look")(lambda: inside.append(Path("checkpoints").exists()))
            task(id="ask", inject_context=True)(body)
        return flow

    build(lambda context: context.checkpoint()).execute()
    build(ask_in_a_helper).execute()

    assert inside == [True, True]


def test_nothing_runs_if_the_key_could_be_changed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    key = tmp_path / "key"
    key.write_text("k1:" + "ab" * 32)
    key.chmod(0o666)
    monkeypatch.setenv("GRAFLOW_CKPT_KEY_FILE", str(key))

    def a() -> None:
        ran.append(1)

    with pytest.raises(CheckpointError, match="Others can read"):
        chain(a, session_id="s", durability="journal").execute()

    assert ran == []


def test_a_parameter_that_nothing_can_fill_is_refused_before_anything_runs() -> None:
    ran = []

    def a() -> None:
        ran.append(1)

    with pytest.raises(GraphError, match="'first' of task 'b'"):
        chain(a, b=lambda a, first: None).execute()

    assert ran == []


# --- checks -----------------------------------------------------------------------------


def test_who_changes_a_result_of_another_task_is_named() -> None:
    def make() -> Box:
        return Box(1)

    def use(make: Box) -> None:
        make.items.append(2)

    with pytest.raises(ReadOnlyChanged, match=r"'use' changed 'make\.__result__'") as changed:
        chain(make, use, max_retries=3).execute()

    assert changed.value.task == "use"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_who_changes_a_readonly_value_is_named_and_it_is_not_saved(isolation: Any) -> None:
    def first() -> None: ...

    def use(context) -> None:
        context.get_channel().get("box", readonly=True).items.append(2)

    flow = chain(first, use, isolation=isolation, session_id="s", checkpoint=EveryTask())
    flow.get_channel().set("box", Box(1))
    with pytest.raises(ReadOnlyChanged, match="'use' changed 'box'"):
        flow.execute()

    restored, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("s"))
    assert restored.get_channel().get("box").items == [1]


def test_a_task_that_fails_after_such_a_change_is_named_too() -> None:
    def use(context) -> None:
        context.get_channel().get("box", readonly=True).items.append(2)
        raise OSError("x")

    flow = chain(use)
    flow.get_channel().set("box", Box(1))
    with pytest.raises(ReadOnlyChanged) as changed:
        flow.execute()

    assert isinstance(changed.value.__cause__, OSError)


def test_who_has_the_value_on_loan_may_change_it_while_others_look() -> None:
    looked, changed = threading.Event(), threading.Event()

    with workflow("w") as flow:
        flow.get_channel().set("box", Box(1))

        @task(inject_context=True)
        def looker(context) -> int:
            box = context.get_channel().get("box", readonly=True)
            looked.set()
            assert changed.wait(LONG)
            return len(box.items)

        @task(inject_context=True)
        def changer(context) -> None:
            assert looked.wait(LONG)
            context.get_channel().get("box").items.append(2)
            changed.set()

        @task(inject_context=True)
        def both(context) -> None:
            channel = context.get_channel()
            channel.get("box", readonly=True)
            channel.get("box").items.append(3)

        (looker | changer) >> both
        flow.execute()

    assert flow.execution_context.get_result("looker") == 2
    assert flow.get_channel().get("box").items == [1, 2, 3]


def test_without_the_setting_nothing_is_digested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_CHECK", "0")

    def make() -> Box:
        return Box(1)

    def use(make: Box) -> int:
        make.items.append(2)
        return len(make.items)

    assert chain(make, use).execute() == 2
