"""Older checkpoints that somebody has put back: found out by the machine that has seen later ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, KeepLast, Workflow, task, workflow
from graflow_ckpt.core.errors import RolledBack
from graflow_ckpt.stores import open_store


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


def after_a_failure(store: str, flaw: Path) -> list[str]:
    """The session has come to its failure, which is mended; its checkpoints, the newest first."""
    flaw.touch()
    with pytest.raises(OSError, match="broken"):
        counting(store, flaw, []).execute()
    flaw.unlink()
    return [found.path for found in CheckpointManager.list_checkpoints("s", store=store)]


def store_in(folder: Path, kind: str) -> str:
    return str(folder / "checkpoints") if kind == "local" else f"sqlite:///{folder}/runs.db"


def take_away(store: str, path: str) -> None:
    """As one who can write into the store, and notes nothing in our home."""
    assert open_store(store).delete(path)


@pytest.mark.parametrize("kind", ["local", "sqlite"])
def test_a_session_does_not_go_on_from_an_older_checkpoint_in_silence(kind: str, tmp_path: Path) -> None:
    store, ran = store_in(tmp_path, kind), list[int]()
    newest, older, *_ = after_a_failure(store, tmp_path / "flaw")
    take_away(store, newest)

    with pytest.raises(RolledBack, match="as this machine has seen") as caught:
        counting(store, tmp_path / "flaw", ran).execute()

    assert ran == []
    assert caught.value.path == older
    context, _ = CheckpointManager.resume_from_checkpoint(older, store=store)  # on purpose
    context.execute()
    assert context.status == "completed"
    counting(store, tmp_path / "flaw", ran).execute()  # and from there on it is the session's history
    assert ran == []


@pytest.mark.parametrize("kind", ["local", "sqlite"])
def test_a_session_of_which_nothing_is_left_begins_anew(kind: str, tmp_path: Path) -> None:
    store, ran = store_in(tmp_path, kind), list[int]()
    for path in after_a_failure(store, tmp_path / "flaw"):
        take_away(store, path)

    counting(store, tmp_path / "flaw", ran).execute()

    assert ran == [0, 1, 2, 3, 4]
