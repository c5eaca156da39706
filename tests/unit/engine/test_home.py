"""Where a session is kept: its lease, its numbers, the cuts that are good, the journal's segments."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
)
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.retention import (
    DEFAULT,
    Automatic,
    BestOf,
    DeleteOnSuccess,
    KeepFor,
    KeepWithin,
    OfAll,
    Retention,
)
from graflow_ckpt.core.errors import (
    CheckpointError,
    Interrupted,
    JournalFailed,
    NoGoodCheckpoint,
    SessionBusy,
)
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.engine import home as tidying
from graflow_ckpt.engine.home import Home, Tidier
from graflow_ckpt.engine.resuming import program_file
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.disk import Disk
from graflow_ckpt.stores.files.store import LocalStore
from tests.loops import chain, loop
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import left, line, save
from tests.unit.stores.faults import FaultyDisk


def three(ran: list[str] | None = None, **options: Any) -> Workflow:
    ran = [] if ran is None else ran

    def a() -> int:
        ran.append("a")
        return 1

    def b(a: int) -> int:
        ran.append("b")
        return a + 1

    def c(b: int) -> int:
        ran.append("c")
        return b + 1

    return chain(a, b, c, session_id="s", checkpoint=EveryTask(), **options)


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

    paths = {home.own_path(3) for _ in range(5)}

    assert len(paths) == 5


def test_reserved_paths_are_never_given_twice_to_two_threads_either() -> None:
    class Yielding(int):
        def __gt__(self, other: int) -> bool:
            time.sleep(0)  # another thread's turn
            return int(self) > other

    home = Home(LocalStore("c"), "s")
    home.lineage.sequence = Yielding(0)

    with ThreadPoolExecutor(4) as threads:
        paths = list(threads.map(home.own_path, [3] * 100))

    assert len({*paths}) == 100


@pytest.mark.parametrize(
    "path",
    [
        "checkpoints/x.pkl",
        "link/x.pkl",
        "{here}/checkpoints/x.pkl",
        "file://{here}/checkpoints/x.pkl",
        "FILE://{here}/checkpoints/x.pkl",
        "file://{here}/other/../checkpoints/x.pkl",
        "compressed+file://{here}/other/../checkpoints/x.pkl",
    ],
)
def test_the_own_folder_is_the_own_folder_however_it_is_written(path: str, tmp_path: Path) -> None:
    Path("link").symlink_to("checkpoints")
    context = three(
        store=f"compressed+file://{tmp_path}/checkpoints" if "+" in path else "checkpoints"
    ).execution_context

    saved, _ = context.checkpoint(path.format(here=tmp_path))

    assert context.home.finds(saved)
    assert Path("checkpoints/x.pkl").is_file()
    assert not context.home.finds(f"{tmp_path}/x.pkl")
    assert not Path("FILE:").exists()


def test_a_name_alone_is_in_the_working_folder() -> None:
    assert three(store=".").execution_context.home.finds("x.pkl")
    assert not three().execution_context.home.finds("x.pkl")


@pytest.mark.parametrize("path", ["~/x.pkl", "sqlite:runs.db/x", "encryptd+/srv/x.pkl"])
def test_a_path_that_is_half_an_address_makes_no_folder_of_that_name(path: str) -> None:
    context = three().execution_context

    with pytest.raises(CheckpointError, match="Write"):
        context.checkpoint(path)

    assert not Path(path).parent.exists()


@pytest.mark.parametrize("end", [OSError("x"), Interrupted("x", "s")])
def test_what_is_said_of_a_resume_counts_on_no_checkpoint_that_it_does_not_find(end: BaseException) -> None:
    def a(context: TaskExecutionContext) -> None:
        context.execution_context.checkpoint("elsewhere/x.pkl")
        if isinstance(end, Interrupted):
            signal.raise_signal(signal.SIGTERM)
        raise end

    flow = chain(a, lambda: 1, session_id="s", durability="none")
    with pytest.raises(type(end)) as ended:
        flow.execute()

    assert "graflow-ckpt resume" not in "".join([str(ended.value), *getattr(ended.value, "__notes__", [])])
    assert flow.execution_context.last_checkpoint_path == "elsewhere/x.pkl"
    assert CheckpointManager.list_checkpoints("s") == []


def test_sequences_go_on_over_sessions_that_were_resumed() -> None:
    three().execute()
    numbers = [m.sequence for m in CheckpointManager.list_checkpoints("s")]
    first = CheckpointManager.list_checkpoints("s")[-1]

    context, _ = CheckpointManager.resume_from_checkpoint(first.path)
    context.execute()

    later = [m.sequence for m in CheckpointManager.list_checkpoints("s") if m.sequence not in numbers]
    assert min(later) > max(numbers)


@pytest.mark.parametrize("part", [".pkl", ".meta.json", ".state.json"])
def test_a_damaged_newest_cut_is_passed_over_and_said_so(part: str, caplog: pytest.LogCaptureFixture) -> None:
    three().execute()
    found = CheckpointManager.list_checkpoints("s")
    for metadata in found[:2]:
        damage(metadata.path.removesuffix(".pkl") + part)
    ran: list[str] = []

    result = three(ran, changed="reuse").execute()

    assert result == 3
    assert ran == ["c"]
    assert "is passed over" in caplog.text


def test_if_all_cuts_are_damaged_nothing_is_started() -> None:
    three().execute()
    for metadata in CheckpointManager.list_checkpoints("s"):
        damage(metadata.path)
    ran: list[str] = []

    with pytest.raises(NoGoodCheckpoint, match="none of them verifies") as none:
        three(ran).execute()

    assert ran == []
    assert len(none.value.skipped) == 5
    with pytest.raises(NoGoodCheckpoint):  # and the session was let go
        three(ran).execute()


def test_a_segment_that_nothing_was_appended_to_goes_on_being_used() -> None:
    home = Home(LocalStore("c"), "s")
    begin = partial(home.journal.begin, lease=home.open(), keyring=home.keyring)
    begin(0)
    begin(0)
    home.journal.append(b"record")
    begin(1)
    home.close()

    assert [(epoch, after) for epoch, after, _ in LocalStore("c").segments("s")] == [(1, 0), (1, 1)]


def test_journal_segments_that_two_cuts_cover_are_dropped() -> None:
    three(durability="journal").execute()

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


# --- tidying ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)


class _Counting:
    """Counts how often a store was listed as a whole."""

    passes = 0

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        self.passes += session is None and pattern is None
        found: Iterator[tuple[str, bytes]] = super().list(session, pattern)  # type: ignore[misc]
        return found


class Counting(_Counting, LocalStore):
    """In a folder, where what is too much goes after a save."""


class CountingMemory(_Counting, MemoryStore):
    """Where it goes in the commit."""


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(tmp_path)


@pytest.fixture
def keyed() -> Iterator[CountingMemory]:
    yield (store := CountingMemory("memory://tidying"))
    store.forget()


@pytest.fixture(params=["store", "keyed"])
def either(request: pytest.FixtureRequest) -> Counting | CountingMemory:
    found: Counting | CountingMemory = request.getfixturevalue(request.param)
    return found


def tidier(store: CheckpointStore, *, alone: bool = True) -> Tidier:
    return Tidier(store, "s", lambda: trios.RING, emit=lambda kind, **facts: None, alone=alone)


class Owner:
    """Saves as the owner of a session does it."""

    def __init__(self, store: Counting | CountingMemory) -> None:
        self.store = store
        self.tidier = tidier(store)
        self.lease = store.acquire("s")

    def save(self, number: int, keep: Retention, *, last: bool = False, **more: Any) -> CheckpointMetadata:
        going = partial(self.tidier.before, keep=keep)
        saved = save(self.store, "s", number, lease=self.lease, going=going, **more)
        self.tidier.after(saved, keep, last=last)
        return saved


@pytest.fixture
def owner(either: Counting | CountingMemory) -> Iterator[Owner]:
    yield (owner := Owner(either))
    owner.lease.release()


def test_with_each_save_what_is_too_much_goes(owner: Owner) -> None:
    for number in range(1, 6):
        owner.save(number, KeepLast(2))
        assert left(owner.store) == [f"s{n}" for n in (number - 1, number) if n]


class Reading(Disk):
    """The real disk; it counts the folders and the files that are read."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def names(self, folder: str) -> list[str]:
        self.count += 1
        return super().names(folder)

    def open(self, path: str) -> int:
        self.count += 1
        return super().open(path)


@pytest.mark.parametrize("path", [None, "c/mine.pkl", "c/mine{}", "elsewhere/mine{}.pkl"])
def test_a_save_reads_nothing_of_those_before_it(path: str | None) -> None:
    disk, counts = Reading(), list[int]()

    def body(context: TaskExecutionContext) -> None:
        disk.count = 0
        context.execution_context.checkpoint(path and path.format(context.cycle))
        counts.append(disk.count)

    loop(20, body, store=LocalStore("c", disk=disk)).execute()

    assert counts[1:] == [0] * 19  # the first one of a run looks what there is


def test_what_the_saves_of_a_run_replace_goes_in_their_commits(keyed: CountingMemory) -> None:
    loop(20, checkpoint=EveryTask(), keep=KeepLast(2), store=keyed).execute()

    assert (keyed.passes, left(keyed)) == (1, ["s20", "s21"])


def test_what_goes_in_the_commit_asks_the_store_for_nothing_else(
    keyed: CountingMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, batches = Owner(keyed), list[int]()
    for number in range(1, 4):
        owner.save(number, KeepLast(2))
    batch = keyed.driver.batch
    monkeypatch.setattr(
        keyed.driver, "batch", lambda *args, **more: (batches.append(1), batch(*args, **more))[1]
    )

    for number in range(4, 10):
        owner.save(number, KeepLast(2))

    assert (left(keyed), keyed.passes - 1, len(batches)) == (["s8", "s9"], 1, 6)  # left() listed it, too


@pytest.mark.parametrize("when", [1, 4])
def test_where_another_session_begins_meanwhile_stays(owner: Owner, when: int) -> None:
    for number in range(1, 9):
        saved = owner.save(number, KeepLast(2))
        if number == when:
            save(owner.store, "other", 1, parent=saved.checkpoint_id)

    assert left(owner.store) == ["other1", *(f"s{n}" for n in (when, 7, 8))]


def test_what_waits_for_an_answer_stays_with_every_later_save(owner: Owner) -> None:
    for number in range(1, 9):
        owner.save(number, KeepLast(2), **({"status": "paused"} if number == 4 else {}))

    assert left(owner.store) == ["s4", "s7", "s8"]


def test_of_a_save_whose_outcome_nobody_has_told_the_store_is_asked(owner: Owner) -> None:
    for number in range(1, 5):
        owner.save(number, KeepLast(2))
    lost = save(owner.store, "s", 5, lease=owner.lease, going=partial(owner.tidier.before, keep=KeepLast(2)))

    owner.save(6, KeepLast(2))

    assert left(owner.store) == ["s5", "s6"]
    assert lost.sequence == 5


def test_nothing_is_looked_at_while_nothing_is_too_much(store: Counting) -> None:
    one = tidier(store)
    for number in range(1, 11):
        one.after(save(store, "s", number), DEFAULT)
    assert store.passes == 0

    one.after(save(store, "s", 11), DEFAULT)
    assert (store.passes, len(left(store))) == (1, 10)


def test_what_was_asked_for_stays_unless_the_retention_is_of_all(store: Counting) -> None:
    one = tidier(store)
    for number in range(1, 5):
        one.after(save(store, "s", number, cause="request"), KeepLast(1))
    assert len(left(store)) == 4

    one.after(save(store, "s", 5), OfAll(KeepLast(1)))
    assert left(store) == ["s5"]


def test_another_retention_counts_what_the_former_did_not(owner: Owner) -> None:
    for number in range(1, 4):
        owner.save(number, KeepLast(1), cause="request")

    owner.save(4, OfAll(KeepLast(2)), cause="request")

    assert left(owner.store) == ["s3", "s4"]


def test_what_was_asked_for_is_not_looked_at_with_every_save(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    keeps = Automatic.keeps
    monkeypatch.setattr(
        Automatic, "keeps", lambda self, cuts, now: (seen.append(len(cuts)), keeps(self, cuts, now))[1]
    )
    owner = Owner(store)
    for number in range(1, 20):
        owner.save(number, KeepLast(9), cause="request" if number % 4 else "policy")

    assert (max(seen), len(left(store))) == (4, 19)


def test_what_earlier_processes_have_left_goes_too(store: Counting) -> None:
    line(store, "s", 5, days=9)

    tidier(store).after(save(store, "s", 6), DEFAULT)

    assert left(store) == ["s6"]


def test_the_best_ones_stay_among_those_of_a_run(store: Counting) -> None:
    one = tidier(store)
    for number, loss in enumerate([3.0, 1.0, 2.0, 4.0], 1):
        one.after(save(store, "s", number, user={"loss": loss}), KeepLast(1) | BestOf("loss", 1, "min"))

    assert left(store) == ["s2", "s4"]


def test_the_owner_of_the_session_is_not_kept_from_tidying_it(store: Counting) -> None:
    lease = store.acquire("s")
    try:
        line(store, "s", 3)
        tidier(store).after(save(store, "s", 4), KeepLast(1))
    finally:
        lease.release()

    assert left(store) == ["s4"]


def test_other_sessions_are_left_alone_unless_they_count(store: Counting) -> None:
    line(store, "a", 4)
    line(store, "b", 4, workflow="v")

    tidier(store).after(save(store, "s", 1), KeepLast(2))
    assert len(left(store)) == 9
    tidier(store).after(save(store, "s", 2), KeepLast(3, per="workflow"))

    assert left(store) == ["a4", *(f"b{n}" for n in (2, 3, 4)), "s1", "s2"]


def test_of_another_session_nothing_goes_that_is_needed(store: Counting) -> None:
    line(store, "a", 2, days=1)
    save(store, "p", 1, days=2, status="paused")

    tidier(store).after(save(store, "s", 1), KeepWithin(kb=0.001))

    assert left(store) == ["a2", "p1", "s1"]


def test_in_a_large_store_saves_have_to_earn_a_pass(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "EARNED", 1)
    line(store, "other", 6)
    one = tidier(store)
    counts = []
    for number in range(1, 19):
        one.after(save(store, "s", number), KeepLast(1))
        counts.append(len([*Path(store.folder).glob("session_s_*.pkl")]))

    assert store.passes == 3  # the first one shows how many there are
    assert counts == [1, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3]

    one.after(save(store, "s", 19), KeepLast(1), last=True)
    assert len(left(store)) == 7


def test_large_ones_do_not_wait_for_long(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "EARNED", 0)
    monkeypatch.setattr(tidying, "BYTES", 1)
    line(store, "other", 6)
    one = Owner(store)
    for number in range(1, 5):
        one.save(number, KeepLast(1))

    assert len(left(store)) == 7


def test_who_shares_a_session_counts_what_others_have_saved(store: Counting) -> None:
    mine, yours = tidier(store, alone=False), tidier(store, alone=False)
    for number in range(1, 7):
        (mine if number % 2 else yours).after(save(store, "s", number), KeepLast(2))

    assert left(store) == ["s5", "s6"]


def test_only_what_is_in_the_store_of_the_session_counts(store: Counting, tmp_path: Path) -> None:
    one = tidier(store)
    one.after(save(store, "s", 1), OfAll(KeepLast(1)))
    elsewhere = save(LocalStore(tmp_path / "other"), "s", 2)

    assert not one.after(elsewhere, OfAll(KeepLast(1)))

    assert left(store) == ["s1"]
    assert Path(elsewhere.path).exists()


def test_when_nothing_is_left_that_is_told(store: Counting) -> None:
    one = tidier(store)
    assert not one.after(save(store, "s", 1), DeleteOnSuccess())

    assert one.after(save(store, "s", 2, status="completed", cause="end"), DeleteOnSuccess(), last=True)
    assert left(store) == []


def test_a_save_never_fails_for_what_is_not_deleted(
    store: Counting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = tidier(store)
    line(store, "s", 3, days=9)
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(Counting, "delete", _refuse)
        one.after(save(store, "s", 4), KeepFor(days=7))
        broken.setattr(Counting, "list", _refuse)
        one.after(save(store, "s", 5), KeepLast(1))
    assert len(left(store)) == 5
    assert "checkpoints stay" in caplog.text

    one.after(save(store, "s", 6), KeepLast(1))
    assert left(store) == ["s6"]


def _refuse(*args: Any) -> Any:
    raise PermissionError("read-only")
