"""Going back on purpose: a checkpoint of its own, and nothing that it supersedes counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager
from graflow_ckpt.stores import open_store
from tests.acceptance.test_restored_backup import after_a_failure, counting, store_in

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


def causes(store: str) -> list[str]:
    """Those of the session's checkpoints, the newest first."""
    return [found.cause for found in CheckpointManager.list_checkpoints("s", store=store)]


@pytest.mark.parametrize("kind", ["local", "sqlite"])
def test_a_named_checkpoint_that_is_the_newest_is_continued_without_a_rewind(
    kind: str, tmp_path: Path
) -> None:
    store = store_in(tmp_path, kind)
    newest, *_ = after_a_failure(store, tmp_path / "flaw")

    context, _ = CheckpointManager.resume_from_checkpoint(newest, store=store)
    context.execute()

    assert context.status == "completed"
    assert "rewind" not in causes(store)


@pytest.mark.parametrize("kind", ["local", "sqlite"])
def test_a_rewind_is_there_before_the_first_task_and_what_came_later_is_no_fallback(
    kind: str, tmp_path: Path
) -> None:
    store, ran = store_in(tmp_path, kind), list[int]()
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
    counting(store, tmp_path / "flaw", ran).execute()
    assert ran == [1, 2, 3, 4]
