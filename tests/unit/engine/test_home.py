"""Where a session is kept: its lease, its numbers, the cuts that are good, the journal's segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    Event,
    EveryN,
    EveryTask,
    KeepLast,
    TaskExecutionContext,
    Workflow,
    task,
    workflow,
)
from graflow_ckpt.core.errors import JournalFailed, NoGoodCheckpoint, SessionBusy
from graflow_ckpt.engine.home import Home, program_file
from graflow_ckpt.stores.local import LocalStore
from tests.loops import loop
from tests.unit.stores.faults import FaultyDisk


def chain(ran: list[str] | None = None, **options: Any) -> Workflow:
    ran = [] if ran is None else ran
    with workflow("w", session_id="s", checkpoint=EveryTask(), **options) as flow:

        @task
        def a() -> int:
            ran.append("a")
            return 1

        @task
        def b(a: int) -> int:
            ran.append("b")
            return a + 1

        @task
        def c(b: int) -> int:
            ran.append("c")
            return b + 1

        a >> b >> c
    return flow


def damage(path: str) -> None:
    raw = bytearray(Path(path).read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    Path(path).write_bytes(raw)


def test_nothing_is_on_the_disk_before_it_is_opened(tmp_path: Path) -> None:
    home = Home(LocalStore(tmp_path / "c"), "s")
    home.close()

    assert not (tmp_path / "c").exists()


def test_opened_twice_it_owns_the_session_once_and_others_do_not(tmp_path: Path) -> None:
    home = Home(LocalStore(tmp_path / "c"), "s")

    lease = home.open()
    assert home.open() is lease
    with pytest.raises(SessionBusy):
        Home(LocalStore(tmp_path / "c"), "s").open()
    home.close()

    other = Home(LocalStore(tmp_path / "c"), "s")
    assert other.open().epoch == lease.epoch + 1
    other.close()


def test_reserved_paths_are_never_given_twice() -> None:
    home = Home(LocalStore("c"), "s")

    paths = {home.reserve_path(3) for _ in range(5)}

    assert len(paths) == 5


def test_sequences_go_on_over_sessions_that_were_resumed() -> None:
    chain().execute()
    numbers = [m.sequence for m in CheckpointManager.list_checkpoints("s")]
    first = CheckpointManager.list_checkpoints("s")[-1]

    context, _ = CheckpointManager.resume_from_checkpoint(first.path)
    context.execute()

    later = [m.sequence for m in CheckpointManager.list_checkpoints("s") if m.sequence not in numbers]
    assert min(later) > max(numbers)


@pytest.mark.parametrize("part", [".pkl", ".meta.json", ".state.json"])
def test_a_damaged_newest_cut_is_passed_over_and_said_so(part: str, caplog: pytest.LogCaptureFixture) -> None:
    chain().execute()
    found = CheckpointManager.list_checkpoints("s")
    for metadata in found[:2]:
        damage(metadata.path.removesuffix(".pkl") + part)
    ran: list[str] = []

    result = chain(ran, changed="reuse").execute()

    assert result == 3
    assert ran == ["c"]
    assert "is passed over" in caplog.text


def test_if_all_cuts_are_damaged_nothing_is_started() -> None:
    chain().execute()
    for metadata in CheckpointManager.list_checkpoints("s"):
        damage(metadata.path)
    ran: list[str] = []

    with pytest.raises(NoGoodCheckpoint, match="none of them verifies") as none:
        chain(ran).execute()

    assert ran == []
    assert len(none.value.skipped) == 5
    with pytest.raises(NoGoodCheckpoint):  # and the session was let go
        chain(ran).execute()


def test_a_segment_that_nothing_was_appended_to_goes_on_being_used() -> None:
    home = Home(LocalStore("c"), "s")
    home.open_journal(0)
    home.open_journal(0)
    home.append(b"record")
    home.open_journal(1)
    home.close()

    assert [(epoch, after) for epoch, after, _ in LocalStore("c").segments("s")] == [(1, 0), (1, 1)]


def test_journal_segments_that_two_cuts_cover_are_dropped() -> None:
    chain(durability="journal").execute()

    segments = [after for _, after, _ in LocalStore("checkpoints").segments("s")]
    assert 1 <= len(segments) <= 2


def test_the_file_of_the_program_is_known_and_an_interactive_one_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys
    from types import ModuleType

    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert program_file() is None

    main.__file__ = "program.py"
    found = program_file()

    assert found is not None
    assert Path(found).is_absolute()


def test_a_save_of_which_nobody_knows_keeps_its_number_to_itself(tmp_path: Path) -> None:
    """It may stand: were its number given again, a resume could take it for the newer one of two."""
    disk = FaultyDisk()

    def body(context: TaskExecutionContext) -> None:
        if context.cycle == 8:  # the commit is a rename; the second sync of the folder is to confirm it
            disk.arm("sync_folder", at=2)

    loop(10, body, checkpoint=EveryTask(), store=LocalStore(tmp_path / "c", disk=disk)).execute()

    found = CheckpointManager.list_checkpoints("s", store=str(tmp_path / "c"))
    assert 9 in [metadata.steps for metadata in found]
    numbers = [metadata.sequence for metadata in found]
    assert len(set(numbers)) == len(numbers)
    assert max(found, key=lambda metadata: metadata.sequence).steps == 10


def test_what_is_left_of_an_old_journal_is_no_failure_of_the_cut(tmp_path: Path) -> None:
    seen: list[Event] = []
    disk = FaultyDisk()

    def body(context: TaskExecutionContext) -> None:
        if context.cycle == 4:
            disk.arm("unlink", at=1)

    store = LocalStore(tmp_path / "c", disk=disk)
    loop(
        6,
        body,
        durability="journal",
        checkpoint=EveryN(2),
        store=store,
        keep=KeepLast(100),
        observers=[seen.append],
    ).execute()

    kinds = [event.kind for event in seen]
    assert "checkpoint_failed" not in kinds
    assert kinds.count("checkpoint_saved") >= 4


def test_a_journal_that_cannot_be_begun_again_ends_the_session_by_name(tmp_path: Path) -> None:
    disk = FaultyDisk()

    def body(context: TaskExecutionContext) -> None:
        if context.cycle == 3:
            disk.arm("create", at=4)  # after the three parts of a cut

    flow = loop(
        9, body, durability="journal", checkpoint=EveryN(2), store=LocalStore(tmp_path / "c", disk=disk)
    )

    with pytest.raises(JournalFailed, match="could not be begun"):
        flow.execute()
