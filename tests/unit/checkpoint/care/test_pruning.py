"""Pruning: what goes, what stays whatever is asked for, and what happens when something cannot be deleted.

On local files and in Redis.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graflow_ckpt import CheckpointManager
from graflow_ckpt.checkpoint import history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.care.inventory import inventory
from graflow_ckpt.checkpoint.care.pruning import WAITS, Guard, PruningPlan, Sweeper, carry_out, plan, planned
from graflow_ckpt.checkpoint.retention import (
    DEFAULT,
    FINISHED,
    Cut,
    DeleteOnSuccess,
    KeepFor,
    KeepLast,
    KeepWithin,
    LastSuccessful,
    OfAll,
    Retention,
    forked_from,
)
from graflow_ckpt.checkpoint.seals import seal
from graflow_ckpt.core.errors import CheckpointError, GraphError, NoKey
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.trios import all_of, owning, put_meta, writer
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import left, line, save
from tests.unit.checkpoint.test_retention import retentions


def pruned(store: CheckpointStore, retention: Retention, **more: Any) -> dict[str, str]:
    """What was spared, by name, and why."""
    done = CheckpointManager.prune(retention, store=store.url.removeprefix("file://"), **more)
    assert not done.failed
    return {f"{cut.session}{cut.sequence}": reason for cut, reason in done.spared}


def plan_of(store: CheckpointStore, retention: Retention) -> PruningPlan:
    return plan(Guard(store, inventory(store), lambda: trios.RING), retention, 0.0)


def damage(store: CheckpointStore, path: str, part: str = "pkl") -> None:
    """A meta whose digest of a part is another one's: sealed by somebody who has the key, and wrong."""
    raw = store.meta(path)
    meta = json.loads(raw)
    stage = meta["stage"]
    parts = {name: all_of(store.open(path, name, stage)) for name in ("pkl", "state.json")}
    meta["parts"][part]["chunks"] = ["00" * 32 for _ in meta["parts"][part]["chunks"]]
    sealed = json.dumps(seal(meta, trios.RING)).encode()
    writers = [(name, writer(data)) for name, data in {**parts, "meta.json": sealed}.items()]
    store.put(path, writers, lease=None, stage=stage)


# --- what goes -------------------------------------------------------------------------


def test_what_is_too_much_or_too_old_goes(store: CheckpointStore) -> None:
    line(store, "a", 12)
    line(store, "b", 3, days=8)
    save(store, "b", 4)

    assert pruned(store, DEFAULT) == {}
    assert left(store) == sorted([*(f"a{n}" for n in range(3, 13)), "b4"])


def test_of_old_sessions_that_ended_the_last_good_end_stays(store: CheckpointStore) -> None:
    for session, days in (("a", 30), ("b", 20)):
        save(store, session, 1, days=days)
        save(store, session, 2, days=days, status="completed")

    pruned(store, DEFAULT)

    assert left(store) == ["b2"]


def test_failed_runs_are_looked_after_like_others_and_can_still_go_on(store: CheckpointStore) -> None:
    line(store, "a", 3, days=20)
    save(store, "a", 4, days=20, status="failed")

    assert pruned(store, KeepFor(days=7)) == {"a4": "newest"}
    assert left(store) == ["a4"]
    path = CheckpointManager.get_latest("a", store=store.folder)
    assert CheckpointManager.resume_from_checkpoint(path)[1].status == "failed"


def test_cancelled_sessions_go_as_a_whole(store: CheckpointStore) -> None:
    line(store, "a", 2, days=20)
    save(store, "a", 3, days=20, status="cancelled")

    assert pruned(store, KeepFor(days=7)) == {}
    assert left(store) == []


def test_a_budget_holds_for_the_store(store: CheckpointStore) -> None:
    line(store, "a", 4, days=1)
    line(store, "b", 4)
    one = inventory(store).size / 8

    pruned(store, KeepWithin(kb=one * 5.5 / 1000))

    assert left(store) == ["a4", "b1", "b2", "b3", "b4"]
    assert inventory(store).size <= one * 5.5


def test_only_the_session_or_workflow_that_is_named_is_pruned(store: CheckpointStore) -> None:
    line(store, "a", 3)
    line(store, "b", 3, workflow="v")

    pruned(store, KeepLast(1), session_id="a")
    assert left(store) == ["a3", "b1", "b2", "b3"]
    pruned(store, KeepLast(2), workflow="v")
    assert left(store) == ["a3", "b2", "b3"]


def test_a_dry_run_says_what_would_go_and_changes_nothing(store: CheckpointStore) -> None:
    line(store, "a", 3)

    done = CheckpointManager.prune(KeepLast(1), store=store.folder, dry_run=True)

    assert [cut.sequence for cut in done.cuts] == [1, 2]
    assert done.size == sum(cut.size for cut in inventory(store).cuts if cut.sequence < 3)
    assert left(store) == ["a1", "a2", "a3"]


def test_checkpoints_under_other_names_count_with_their_session(store: CheckpointStore) -> None:
    save(store, "a", 1, name="best")
    line(store, "b", 1)
    save(store, "a", 2)

    pruned(store, KeepLast(1))

    assert left(store) == ["a2", "b1"]


def test_the_journal_goes_with_the_last_checkpoint(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with owning(store, "a") as lease:
        segment = store.journal(lease, 0)
        segment.append(b"what was done")
        segment.close()
    line(store, "a", 2)
    assert pruned(store, KeepLast(1)) == {}
    assert [raw for _, _, raw in store.segments("a")] == [b"what was done"]

    save(store, "a", 3, status="completed")
    pruned(store, DeleteOnSuccess())

    assert left(store) == []
    assert not any(raw for _, _, raw in store.segments("a"))
    assert store.owner("a") is None


# --- what stays ------------------------------------------------------------------------


def test_the_newest_good_one_stays_behind_damaged_ones(store: CheckpointStore) -> None:
    made = line(store, "a", 4, days=30)
    damage(store, made[3].path)
    damage(store, made[2].path, "state.json")

    assert pruned(store, KeepFor(days=7)) == {"a2": "newest"}
    assert left(store) == ["a2"]


def test_a_kept_one_that_is_damaged_does_not_stand_for_a_good_one(store: CheckpointStore) -> None:
    made = line(store, "a", 3)
    damage(store, made[2].path)

    assert pruned(store, KeepLast(1)) == {"a2": "newest"}
    assert left(store) == ["a2", "a3"]


def test_the_last_successful_one_is_one_that_can_be_read(store: CheckpointStore) -> None:
    save(store, "a", 1, days=30)
    end = save(store, "a", 2, days=30, status="completed")
    damage(store, end.path)

    assert pruned(store, LastSuccessful()) == {"a1": "newest"}
    assert left(store) == ["a1", "a2"]


def test_if_none_is_good_nobody_knows_which_is_needed(store: CheckpointStore) -> None:
    for made in line(store, "a", 2, days=30):
        damage(store, made.path)

    assert pruned(store, KeepFor(days=7)) == {"a1": "doubt", "a2": "doubt"}
    assert left(store) == ["a1", "a2"]


def test_checkpoints_of_another_key_stay(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    line(store, "a", 2, days=30)
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", f"k2:{'32' * 32}")

    assert set(pruned(store, KeepFor(days=7)).values()) == {"doubt"}
    assert left(store) == ["a1", "a2"]


def test_a_shared_store_without_a_key_is_not_pruned(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line(open_store(redis_url), "a", 2)
    monkeypatch.delenv("GRAFLOW_CKPT_KEY")

    with pytest.raises(NoKey):
        CheckpointManager.prune(KeepLast(1), store=redis_url)

    assert left(open_store(redis_url)) == ["a1", "a2"]


def test_after_a_rewind_the_newest_is_that_of_the_current_line(store: CheckpointStore) -> None:
    line(store, "a", 3, days=30)
    save(store, "a", 4, days=30, epoch=2, rewinds=[[2, 1]])
    damage = save(store, "a", 5, days=30, epoch=2, rewinds=[[2, 1]])
    assert store.delete(damage.path)

    assert pruned(store, KeepFor(days=7)) == {"a4": "newest"}
    assert left(store) == ["a4"]


def test_a_meta_that_nobody_has_sealed_supersedes_nothing(store: CheckpointStore) -> None:
    made = line(store, "a", 3, days=30)
    forged = json.loads(store.meta(made[0].path)) | {"epoch": 9, "sequence": 9, "rewinds": [[9, 1]]}
    put_meta(store, "session_a_step_9_17-9", json.dumps(forged).encode(), stage=forged["stage"])

    assert pruned(store, KeepFor(days=7)) == {"a3": "newest"}
    assert "a3" in left(store)


@pytest.mark.parametrize("status", ["paused", "waiting"])
def test_paused_ones_neither_expire_nor_are_trimmed(store: CheckpointStore, status: str) -> None:
    save(store, "a", 1, days=300, status=status)
    save(store, "a", 2, days=200)
    save(store, "a", 3, days=100, status="completed")

    assert pruned(store, KeepFor(days=7)) == {"a1": "paused", "a3": "newest"}
    assert left(store) == ["a1", "a3"]  # with the pause alone, somebody would go on there once more


def test_what_another_session_was_forked_from_stays_while_that_is_there(store: CheckpointStore) -> None:
    made = line(store, "a", 4, days=30)
    save(store, "f", 1, parent=made[1].checkpoint_id, days=30)
    save(store, "g", 5, parent="chk_other", origin=made[2].checkpoint_id)

    assert pruned(store, KeepFor(days=7)) == {
        "a2": "forked", "a3": "forked", "a4": "newest", "f1": "newest",
    }  # fmt: skip
    assert left(store) == ["a2", "a3", "a4", "f1", "g5"]

    for path, _ in list(store.list("f")):
        store.delete(path)
    pruned(store, KeepFor(days=7))
    assert left(store) == ["a3", "a4", "g5"]


def test_a_session_that_somebody_runs_is_left_to_its_owner(store: CheckpointStore) -> None:
    line(store, "a", 3)
    line(store, "b", 3)

    with owning(store, "a"):
        assert pruned(store, KeepLast(1)) == {"a1": "busy", "a2": "busy"}

    assert left(store) == ["a1", "a2", "a3", "b3"]


def test_one_that_was_taken_after_the_plan_is_left_too(store: CheckpointStore) -> None:
    line(store, "a", 3)
    guard = Guard(store, inventory(store), lambda: trios.RING)
    what = plan(guard, KeepLast(1), 0.0)
    with owning(store, "a"):
        done = carry_out(store, what)

    assert (done.cuts, len(done.failed)) == ((), 2)
    assert left(store) == ["a1", "a2", "a3"]


def test_what_cannot_be_read_is_left_to_those_who_repair(store: CheckpointStore) -> None:
    line(store, "a", 2)
    put_meta(store, "x", b"{")

    pruned(store, KeepLast(1))

    assert [cut.status for cut in inventory(store).unreadable] == ["unreadable"]
    assert [cut.sequence for cut in inventory(store).cuts] == [2]


# --- what cannot be deleted ------------------------------------------------------------


class Stubborn:
    """A store that does not give one checkpoint away."""

    def __init__(self, store: CheckpointStore, path: str, error: Exception) -> None:
        self._store, self._path, self._error = store, path, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def delete(self, path: str) -> bool:
        if path == self._path:
            raise self._error
        return self._store.delete(path)

    def delete_many(self, paths: list[str]) -> int:
        return sum(map(self.delete, paths))


@pytest.mark.parametrize("error", [PermissionError("read-only"), CheckpointError("away")])
def test_what_cannot_be_deleted_is_told_and_does_not_keep_the_rest(
    store: CheckpointStore, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    made = line(store, "a", 3)
    what = plan_of(store, KeepLast(1))

    with caplog.at_level(logging.WARNING):
        done = carry_out(Stubborn(store, made[0].path, error), what)  # type: ignore[arg-type]

    assert ([cut.sequence for cut in done.cuts], [cut.sequence for cut, _ in done.failed]) == ([2], [1])
    assert "stays" in caplog.text
    assert left(store) == ["a1", "a3"]


def test_many_are_deleted_at_once_and_those_that_stay_are_told(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    made = line(store, "a", 12)
    what = plan_of(store, KeepLast(1))

    done = carry_out(Stubborn(store, made[4].path, PermissionError("no")), what)  # type: ignore[arg-type]

    assert [cut.sequence for cut in done.cuts] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert [cut.sequence for cut, _ in done.failed] == [5]
    assert left(store) == ["a12", "a5"]


class Counted(Stubborn):
    """Tells how it was asked."""

    def __init__(self, store: CheckpointStore) -> None:
        super().__init__(store, "", OSError())
        self.calls: list[int] = []

    def delete_many(self, paths: list[str]) -> int:
        self.calls.append(len(paths))
        return self._store.delete_many(paths)


def test_a_long_list_is_deleted_in_few_calls_and_those_who_watch_see_each(store: CheckpointStore) -> None:
    line(store, "a", 9)
    line(store, "b", 9)
    what = plan_of(store, KeepLast(1))
    asked, seen = Counted(store), list[str]()

    done = carry_out(asked, what, seen=lambda cut: seen.append(cut.path))  # type: ignore[arg-type]

    assert asked.calls == [16]
    assert [cut.path for cut in done.cuts] == seen == [cut.path for cut in what.cuts]
    assert left(store) == ["a9", "b9"]


def test_what_somebody_else_has_deleted_meanwhile_is_not_counted(store: CheckpointStore) -> None:
    made = line(store, "a", 3)
    what = plan_of(store, KeepLast(1))
    store.delete(made[0].path)

    done = carry_out(store, what)

    assert [cut.sequence for cut in done.cuts] == [2]


def test_the_oldest_go_first_so_that_a_pass_that_is_killed_has_only_begun(store: CheckpointStore) -> None:
    line(store, "b", 3)
    line(store, "a", 3)

    what = plan_of(store, KeepLast(1))

    assert [(cut.session, cut.sequence) for cut in what.cuts] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_what_is_named_goes_even_if_a_retention_would_keep_it(store: CheckpointStore) -> None:
    line(store, "a", 2)
    guard = Guard(store, inventory(store), lambda: trios.RING)

    what = planned(guard, guard.known.cuts)

    assert ([cut.sequence for cut in what.cuts], what.spared[0][1]) == ([1], "newest")
    assert what == PruningPlan(what.cuts, what.spared)


def test_a_session_that_has_gone_back_since_it_was_planned_loses_nothing(store: CheckpointStore) -> None:
    """What it continues from is a checkpoint of its own, which was not planned for."""
    line(store, "a", 4)
    line(store, "b", 4)
    what = plan_of(store, KeepLast(2))
    save(store, "a", 5, epoch=2, rewinds=[[2, 1]])

    done = carry_out(store, what)

    assert (left(store), done.failed) == (["a3", "a4", "a5", "b3", "b4"], ())
    what = plan_of(store, KeepLast(1))
    carry_out(store, what, own="a")
    assert left(store) == ["a5", "b4"]


# --- tenants ----------------------------------------------------------------------------


@pytest.fixture(params=["memory://tenants-kept", "sqlite:///{}/kept.db"])
def tenants(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[CheckpointStore, CheckpointStore]]:
    address = str(request.param).format(tmp_path)
    yield open_store(f"tenant.acme+{address}"), open_store(f"tenant.beta+{address}")
    MemoryStore("memory://tenants-kept").forget()


def test_each_tenant_has_its_own_last_ones(tenants: tuple[CheckpointStore, CheckpointStore]) -> None:
    acme, beta = tenants
    line(beta, "s", 3)
    line(acme, "s", 3)
    save(acme, "t", 4)

    gone = CheckpointManager.prune(OfAll(KeepLast(2, per="tenant")), store=acme.url)

    assert len(gone.cuts) == 2
    assert left(acme) == ["s3", "t4"]
    assert left(beta) == ["s1", "s2", "s3"]


def test_a_budget_is_of_one_tenant(tenants: tuple[CheckpointStore, CheckpointStore]) -> None:
    acme, beta = tenants
    line(acme, "s", 2)
    line(beta, "s", 2)

    assert CheckpointManager.prune(KeepWithin(kb=20, per="tenant"), store=beta.url).cuts == ()
    CheckpointManager.prune(KeepWithin(kb=1, per="tenant"), store=acme.url)

    assert left(acme) == ["s2"]  # the newest good one of a session that can go on
    assert left(beta) == ["s1", "s2"]


# --- the sweeper ------------------------------------------------------------------------


class Watched(Sweeper):
    """Tells when a pass is over; may be told to fail."""

    def __init__(self, *args: Any, fails: int = 0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fails, self.over = fails, threading.Semaphore(0)

    def sweep(self) -> Any:
        try:
            if self.fails:
                self.fails -= 1
                raise ConnectionResetError("the store is away")
            return super().sweep()
        finally:
            self.over.release()


def test_a_store_is_swept_at_once_and_again(store: CheckpointStore) -> None:
    line(store, "s", 3)
    with Watched(store.folder, KeepLast(1), every=0.001) as sweeper:
        assert sweeper.over.acquire(timeout=30)
        assert left(store) == ["s3"]
        save(store, "s", 4)
        while left(store) != ["s4"]:
            assert sweeper.over.acquire(timeout=30)

    assert not [t for t in threading.enumerate() if t.name == "graflow-ckpt sweeper"]


def test_a_pass_that_fails_is_logged_and_the_next_one_comes(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    line(store, "s", 3)
    with caplog.at_level(logging.ERROR), Watched(store.folder, KeepLast(1), every=0.001, fails=2) as sweeper:
        for _ in range(3):
            assert sweeper.over.acquire(timeout=30)

    assert caplog.text.count("the pass has failed") == 2
    assert left(store) == ["s3"]


def test_leaving_ends_a_pass_between_two_checkpoints(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    line(store, "s", 5)
    begun, go_on = threading.Event(), threading.Event()
    delete = type(store).delete

    def slowly(self: Any, path: str) -> bool:
        begun.set()
        assert go_on.wait(30)
        return delete(self, path)

    monkeypatch.setattr(type(store), "delete", slowly)
    sweeper = Sweeper(store.folder, KeepLast(1)).__enter__()
    assert begun.wait(30)
    ending = threading.Thread(target=sweeper.__exit__, args=(None, None, None))
    ending.start()
    while not sweeper._end.is_set():
        pass
    go_on.set()
    ending.join(30)

    assert left(store) == ["s2", "s3", "s4", "s5"]


def test_a_session_that_is_run_is_left_to_its_own_retention(store: CheckpointStore) -> None:
    line(store, "s", 3)
    with owning(store):
        done = Sweeper(store.folder, KeepLast(1)).sweep()

    assert (done.cuts, {why for _, why in done.spared}) == ((), {"busy"})


def test_no_time_between_two_passes_is_refused(tmp_path: Any) -> None:
    with pytest.raises(GraphError, match="needs time"):
        Sweeper(tmp_path, every=0)


# --- any store, any retention -----------------------------------------------------------


NOW = 2e9  # all of them are older than any period


cuts = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 6),
        st.sampled_from(["running", "running", "paused", "failed", "completed", "cancelled"]),
        st.sampled_from(["", "", "damaged", "fork"]),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda cut: cut[:2],
)


def stock(store: LocalStore, described: list[Any]) -> None:
    made: list[Any] = []
    for session, sequence, status, what in described:
        source = next((m for m in made if m.session_id != session), None) if what == "fork" else None
        more = {"origin": source.checkpoint_id} if source else {}
        found = save(store, session, sequence, status=status, user={"x": sequence}, **more)
        if what == "damaged":
            Path(found.path).write_bytes(b"x" * Path(found.path).stat().st_size)
        made.append(found)


def goes_on_at(store: LocalStore) -> dict[str, str]:
    """Where a resume of each session would begin: found by the code of resume, not by that of pruning."""
    found: dict[str, str] = {}
    for session in "abc":
        for path, one in history.newest(store, trios.RING, session):
            if isinstance(one, Found) and not Path(path).read_bytes().startswith(b"xxxx"):
                found[session] = path
                break
    return found


def unfinished(cuts: Sequence[Cut]) -> set[str]:
    last = {cut.session: cut for cut in sorted(cuts, key=lambda cut: cut.sequence)}
    return {session for session, cut in last.items() if cut.status not in FINISHED}


@settings(max_examples=60)
@given(cuts, retentions)
def test_what_must_never_go_stays(described: list[Any], retention: Retention) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(folder)
        stock(store, described)
        before = inventory(store)
        begin = goes_on_at(store)
        needed = {path for session, path in begin.items() if session in unfinished(before.cuts)}
        held = {cut.path for cut in before.cuts if cut.status in WAITS or cut.id in forked_from(before.cuts)}
        kept = retention.keeps(before.cuts, NOW)

        what = plan(Guard(store, before, lambda: trios.RING), retention, NOW)
        carry_out(store, what)

        there = {cut.path for cut in inventory(store).cuts}
        assert held | kept | needed <= there
        assert there == {cut.path for cut in before.cuts} - {cut.path for cut in what.cuts}
        assert goes_on_at(store).items() <= begin.items()  # no session goes back, as long as it is there
        spared = {cut.path for cut, _ in what.spared}
        assert there == kept | spared
