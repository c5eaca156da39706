"""max_checkpoint_size_mb: what is too large is refused and said; what a session pauses with is kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, ExecutionContext, task, workflow
from graflow_ckpt.core.errors import GraphError, TooLarge
from graflow_ckpt.core.events import Event
from graflow_ckpt.stores.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


def growing(sizes: list[int], store: str, fails: bool = False, **options: Any) -> ExecutionContext:
    """One step for each size, which is that of the session's one value after it."""
    with workflow("w", session_id="s", checkpoint=EveryTask(), store=store, rng=False, **options) as flow:

        @task(inject_context=True)
        def grow(context) -> None:
            context.get_channel().set("data", bytes(sizes[context.cycle]))
            if context.cycle + 1 < len(sizes):
                context.next_iteration()
            elif fails:
                raise OSError("broken")

        try:
            flow.execute()
        except OSError:
            assert fails
    return flow.execution_context


def sequences(store: str) -> list[int]:
    return [found.steps for found in CheckpointManager.list_checkpoints("s", store=store)][::-1]


@pytest.fixture(params=["folder", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        MemoryStore("memory://limit").forget()
        return "memory://limit"
    return str(tmp_path / "checkpoints") if request.param == "folder" else f"sqlite:///{tmp_path}/x.db"


def test_what_is_too_large_is_an_event_with_both_sizes_and_the_former_one_stands(store: str) -> None:
    events: list[Event] = []

    context = growing([10, 10, 200_000, 10], store, max_checkpoint_size_mb=0.1, observers=[events.append])

    assert context.status == "completed"
    errors = [event.facts["error"] for event in events if event.kind == "checkpoint_failed"]
    assert len(errors) == 1
    assert errors[0].startswith("Checkpoint size (0.20")
    assert "exceeds limit (0.1 MB). Consider reducing context size or increasing limit." in errors[0]
    assert 3 not in sequences(store)
    assert {1, 2, 4} <= set(sequences(store))
    for found in CheckpointManager.list_checkpoints("s", store=store):
        CheckpointManager.verify(found.path, store=store)


def test_it_ends_the_run_where_a_failed_save_does(store: str) -> None:
    with pytest.raises(TooLarge, match="exceeds limit") as caught:
        growing([200_000, 10], store, max_checkpoint_size_mb=0.1, on_save_failure="fail")

    assert caught.value.size > 200_000
    assert caught.value.limit == 100_000


def test_what_a_session_pauses_with_is_kept_and_it_is_said(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        growing([200_000, 200_000], store, fails=True, max_checkpoint_size_mb=0.1)

    assert sequences(store) == [1]
    assert "exceeds limit (0.1 MB). It is kept, since the session pauses with it." in caplog.text


def test_at_four_fifths_there_is_one_warning(store: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        growing([10, 90_000, 90_000], store, max_checkpoint_size_mb=0.1)

    assert caplog.text.count("approaches limit (0.1 MB)") == 1


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_is_more_than_nothing(limit: float) -> None:
    with pytest.raises(GraphError, match="above 0"):
        workflow("w", max_checkpoint_size_mb=limit)
