"""GRAFLOW_CKPT_CHECK=1: who changes what was to be looked at only is named."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task, workflow
from graflow_ckpt.core.errors import ReadOnlyChanged
from tests.acceptance.live import LONG, Box


def test_who_changes_a_result_of_another_task_is_named() -> None:
    with workflow("w") as flow:

        @task
        def make() -> Box:
            return Box(1)

        @task(max_retries=3)
        def use(make: Box) -> None:
            make.items.append(2)

        make >> use
        with pytest.raises(ReadOnlyChanged, match=r"'use' changed 'make\.__result__'") as changed:
            flow.execute()

    assert changed.value.task == "use"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_who_changes_a_readonly_value_is_named_and_it_is_not_saved(isolation: Any) -> None:
    with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:
        flow.get_channel().set("box", Box(1))

        @task
        def first() -> None: ...

        @task(inject_context=True, isolation=isolation)
        def use(context) -> None:
            context.get_channel().get("box", readonly=True).items.append(2)

        first >> use
        with pytest.raises(ReadOnlyChanged, match="'use' changed 'box'"):
            flow.execute()

    restored, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("s"))
    assert restored.get_channel().get("box").items == [1]


def test_a_task_that_fails_after_such_a_change_is_named_too() -> None:
    with workflow("w") as flow:
        flow.get_channel().set("box", Box(1))

        @task(inject_context=True)
        def use(context) -> None:
            context.get_channel().get("box", readonly=True).items.append(2)
            raise OSError("x")

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

    with workflow("w") as flow:

        @task
        def make() -> Box:
            return Box(1)

        @task
        def use(make: Box) -> int:
            make.items.append(2)
            return len(make.items)

        make >> use
        assert flow.execute() == 2
