"""Sessions that go back: a restored backup, and on purpose.

A session continues from what is there. A rewind is a checkpoint of its own, and what it supersedes counts
no more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, KeepLast, Workflow, task, workflow
from graflow_ckpt.stores import open_store

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


def counting(store: str, flaw: Path, ran: list[int]) -> Workflow:
    """Five rounds, each with a cut; the fourth one fails as long as the flaw is there."""
    with workflow("w", session_id="s", checkpoint=EveryTask(), keep=KeepLast(10), store=store) as flow:

        @task(inject_context=True)
        def count(context) -> None:
            if context.cycle == 3 and flaw.exists():
                raise OSError("broken")
            ran.append(context.cycle)
            if context.cycle < 4:
                context.next_iteration()

    return flow


def counted(store: str, flaw: Path) -> list[int]:
    """The rounds that another run of the session has made."""
    ran = list[int]()
    counting(store, flaw, ran).execute()
    return ran


def after_a_failure(store: str, flaw: Path) -> list[str]:
    """The session has come to its failure, which is mended; its checkpoints, the newest first."""
    flaw.touch()
    with pytest.raises(OSError, match="broken"):
        counting(store, flaw, []).execute()
    flaw.unlink()
    return [found.path for found in CheckpointManager.list_checkpoints("s", store=store)]


@pytest.fixture(params=["{}/checkpoints", "sqlite:///{}/runs.db"], ids=["local", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def test_a_session_continues_from_the_older_checkpoint_that_a_restored_backup_has(
    store: str, tmp_path: Path
) -> None:
    newest, older, *_ = after_a_failure(store, tmp_path / "flaw")
    for path in (newest, older):
        assert open_store(store).delete(path)

    assert counted(store, tmp_path / "flaw") == [2, 3, 4]


def test_a_session_of_which_nothing_is_left_begins_anew(store: str, tmp_path: Path) -> None:
    for path in after_a_failure(store, tmp_path / "flaw"):
        assert open_store(store).delete(path)

    assert counted(store, tmp_path / "flaw") == [0, 1, 2, 3, 4]


# --- going back on purpose --------------------------------------------------------------


def causes(store: str) -> list[str]:
    """Those of the session's checkpoints, the newest first."""
    return [found.cause for found in CheckpointManager.list_checkpoints("s", store=store)]


def test_a_named_checkpoint_that_is_the_newest_is_continued_without_a_rewind(
    store: str, tmp_path: Path
) -> None:
    newest, *_ = after_a_failure(store, tmp_path / "flaw")

    context, _ = CheckpointManager.resume_from_checkpoint(newest, store=store)
    context.execute()

    assert context.status == "completed"
    assert "rewind" not in causes(store)


def test_a_rewind_is_there_before_the_first_task_and_what_came_later_is_no_fallback(
    store: str, tmp_path: Path
) -> None:
    *_, older, oldest = after_a_failure(store, tmp_path / "flaw")
    (tmp_path / "flaw").touch()

    context, _ = CheckpointManager.resume_from_checkpoint(oldest, store=store)
    with pytest.raises(OSError, match="broken"):
        context.execute()
    found = CheckpointManager.list_checkpoints("s", store=store)
    (rewind,) = [one for one in found if one.cause == "rewind"]
    assert rewind.parent == CheckpointManager.verify(oldest).checkpoint_id
    assert older != oldest
    for one in found:
        if one.epoch == rewind.epoch and one.sequence > rewind.sequence:
            assert open_store(store).delete(one.path)
    (tmp_path / "flaw").unlink()

    assert counted(store, tmp_path / "flaw") == [1, 2, 3, 4]
