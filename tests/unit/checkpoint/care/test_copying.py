"""Copying between stores: what arrives, what is left alone, what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.checkpoint import archive, history, journal
from graflow_ckpt.checkpoint.care import copying
from graflow_ckpt.checkpoint.care.copying import Copied, Diverged, Move, survey
from graflow_ckpt.checkpoint.care.inventory import inventory
from graflow_ckpt.cli.care.journey import Luggage, travel
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import CheckpointError, JournalDamaged, SessionBusy, UnknownKey
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.trios import owning
from tests.unit.checkpoint import stocked, trios

OTHER = Keyring({"k2": b"2" * 32})


@pytest.fixture
def origin(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "origin")


@pytest.fixture
def target() -> Iterator[MemoryStore]:
    store = MemoryStore("memory://target")
    yield store
    store.forget()


def move(origin: CheckpointStore, target: CheckpointStore, **more: Any) -> Move:
    return Move(origin, target, more.pop("keys", trios.RING), more.pop("ring", OTHER), **more)


def states(move: Move, session: str = "s") -> list[str]:
    return [cut.state for cut in move.session(session).cuts]


def metas(store: CheckpointStore) -> list[dict[str, Any]]:
    return [json.loads(raw) for _, raw in store.list()]


def append(store: CheckpointStore, *numbers: int, after: int, ring: Keyring = trios.RING) -> None:
    """Records of a journal, as an owner writes them."""
    with owning(store) as lease:
        segment = store.journal(lease, after)
        writer = journal.Writer(ring, "s", lease.epoch, after)
        segment.append(writer.head)
        for number in numbers:
            segment.append(writer.frame(journal.pack(number, 0.0, [("put", "x", bytes([number]), 0)])))
        segment.close()


def replayed(store: CheckpointStore, ring: Keyring = OTHER) -> list[int]:
    """The transitions that a resume would find after the newest cut."""
    path, found = next(iter(history.newest(store, ring, "s")))
    assert isinstance(found, archive.Found), path
    after = found.facts["transition"]
    return [record.sequence for _, record in history.records(store, ring, after, found, "s")]


def test_parts_keep_their_digests_and_meta_gets_the_seal_of_the_target(
    origin: LocalStore, target: MemoryStore
) -> None:
    stocked.line(origin, "s", 3)

    assert states(move(origin, target)) == ["copied"] * 3

    for old, new in zip(metas(origin), metas(target), strict=True):
        assert (new["parts"], new["checkpoint_id"]) == (old["parts"], old["checkpoint_id"])
        assert (old["key_id"], new["key_id"]) == ("k1", "k2")
        assert (new["home"], new["synced"]) == ("memory://target", False)
    for path, _ in target.list():
        assert archive.load(target, OTHER, path)[0].metadata.session_id == "s"


def test_the_order_of_acceptance_is_kept(origin: LocalStore, target: MemoryStore) -> None:
    stocked.line(origin, "s", 3)

    states(move(origin, target))

    assert [meta["sequence"] for meta in metas(target)] == [3, 2, 1]


def test_what_is_there_is_not_written_again_and_nobody_is_disturbed(
    origin: LocalStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stocked.line(origin, "s", 2)
    append(origin, 2, 3, after=1)
    states(move(origin, target))

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("written or owned")

    monkeypatch.setattr(target, "put", refused)
    monkeypatch.setattr(target, "acquire", refused)

    assert states(move(origin, target)) == ["there", "there"]


def test_a_copy_that_was_broken_off_takes_up_where_it_stopped(
    origin: LocalStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stocked.line(origin, "s", 3)
    append(origin, 2, 3, 4, after=1)
    real, calls = target.put, []

    def fails_once(path: str, *args: Any, **more: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(path, *args, **more)

    monkeypatch.setattr(target, "put", fails_once)
    with pytest.raises(KeyboardInterrupt):
        move(origin, target).session("s")
    assert len(metas(target)) == 1

    assert states(move(origin, target)) == ["there", "copied", "copied"]
    assert replayed(target) == replayed(origin, trios.RING) == [2, 3, 4]


def test_what_the_origin_has_done_since_comes_with_the_next_copy(
    origin: LocalStore, target: MemoryStore
) -> None:
    stocked.line(origin, "s", 2)
    append(origin, 2, 3, after=1)
    states(move(origin, target))
    stocked.save(origin, "s", 3)
    append(origin, 2, 3, 4, after=1)

    assert states(move(origin, target)) == ["there", "there", "copied"]
    assert replayed(target) == replayed(origin, trios.RING) == [2, 3, 4]


def test_a_journal_that_the_origin_has_given_up_does_not_come_back(
    origin: LocalStore, target: MemoryStore
) -> None:
    stocked.line(origin, "s", 2)
    append(origin, 2, 3, after=1)
    for _ in range(20):  # epochs of the target run ahead of those of the origin
        target.acquire("s").release()
    states(move(origin, target))
    stocked.save(origin, "s", 3, epoch=9)  # taken at the same transition, by an owner without a journal

    states(move(origin, target))

    assert replayed(target) == replayed(origin, trios.RING) == []
    assert target.acquire("s").epoch > 9


def test_a_journal_that_was_cut_off_in_a_former_copy_does_not_count(
    origin: LocalStore, target: MemoryStore
) -> None:
    stocked.line(origin, "s", 2)
    append(origin, 2, 3, 4, after=1)
    states(move(origin, target))
    append(target, 2, after=1, ring=OTHER)  # as a copy that was killed leaves it

    states(move(origin, target))

    assert replayed(target) == [2, 3, 4]


def test_the_journal_reaches_back_to_the_cut_before_the_newest(
    origin: LocalStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(origin, 2, 3, 4, 5, after=1)
    stocked.save(origin, "s", 1)  # of transition 1
    later = trios.state("s", ("put", "x", b"\x03", -1), ("put", "x", b"\x04", -1))
    later.sequence = 3
    stocked.save(origin, "s", 2, name="session_s_step_4_17-2.pkl", of=later)

    states(move(origin, target))
    assert replayed(target) == [4, 5]
    target.delete("memory://target/session_s_step_4_17-2.pkl")

    assert replayed(target) == [2, 3, 4, 5]


def test_who_has_gone_on_at_the_target_is_not_written_over(origin: LocalStore, target: MemoryStore) -> None:
    stocked.line(origin, "s", 2)
    states(move(origin, target))
    stocked.save(target, "s", 3, epoch=5)
    stocked.save(origin, "s", 3, epoch=2)

    with pytest.raises(Diverged, match="gone on by itself at memory://target"):
        move(origin, target).session("s")


def test_what_the_origin_has_pruned_since_it_was_copied_keeps_nobody_from_copying(
    origin: LocalStore, target: MemoryStore
) -> None:
    made = stocked.line(origin, "s", 2)
    states(move(origin, target))
    stocked.save(origin, "s", 3)
    for old in made:
        origin.delete(old.path)

    assert states(move(origin, target)) == ["copied"]
    assert [meta["sequence"] for meta in metas(target)] == [3, 2, 1]


def test_what_another_place_has_copied_there_is_not_mixed_with_ours(
    origin: LocalStore, target: MemoryStore, tmp_path: Path
) -> None:
    other = LocalStore(tmp_path / "other")
    stocked.line(other, "s", 2)
    states(move(other, target))
    stocked.line(origin, "s", 3)

    with pytest.raises(Diverged):
        move(origin, target).session("s")


def test_a_cut_that_is_made_while_the_journal_is_read_comes_with_the_same_copy(
    origin: LocalStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the records that follow it would come alone, and nobody could go on from them."""
    stocked.line(origin, "s", 1)
    append(origin, 2, 3, after=1)
    known, real = inventory(origin, "s"), copying.tail

    def cut_meanwhile(*args: Any) -> Any:
        if args[0] is origin and len(metas(origin)) == 1:
            later = trios.state("s", ("put", "x", b"\x03", -1))
            later.sequence = 3
            stocked.save(origin, "s", 2, of=later)
            origin.drop_segments("s", 3)
            append(origin, 4, after=3)
        return real(*args)

    monkeypatch.setattr(copying, "tail", cut_meanwhile)
    move(origin, target).session("s", known)

    assert replayed(target) == replayed(origin, trios.RING) == [4]


def cuts_and_prunes(origin: LocalStore, times: int) -> Callable[[Copied], None]:
    """To be called with each cut that is copied: the session cuts twice more, and keeps these two alone."""
    left = iter(range(3, 3 + 2 * times, 2))

    def prune(_: Copied) -> None:
        number = next(left, None)
        if number is None:
            return
        for path, _ in list(origin.list("s")):
            origin.delete(path)
        for sequence in (number, number + 1):
            later = trios.state("s", *[("put", "x", bytes([n]), -1) for n in range(2, sequence + 1)])
            later.sequence = sequence
            stocked.save(origin, "s", sequence, of=later)
        origin.drop_segments("s", number + 1)
        append(origin, number + 2, after=number + 1)

    return prune


def test_a_session_whose_newest_cut_is_pruned_before_it_is_copied_is_copied_again(
    origin: LocalStore, target: MemoryStore
) -> None:
    stocked.line(origin, "s", 2)
    append(origin, 3, after=2)

    moved = move(origin, target, seen=cuts_and_prunes(origin, 1)).session("s")

    assert [cut.state for cut in moved.cuts] == ["copied", "copied"]
    assert (moved.error, replayed(target)) == (None, replayed(origin, trios.RING))


def test_a_session_that_prunes_faster_than_it_is_copied_gets_no_journal_with_a_gap(
    origin: LocalStore, target: MemoryStore
) -> None:
    stocked.line(origin, "s", 2)
    states(move(origin, target))
    append(origin, 3, after=2)

    moved = move(origin, target, seen=cuts_and_prunes(origin, 100)).session("s")

    assert "prunes faster than it can be copied" in str(moved.error)
    assert replayed(target) == []


def test_the_other_way_round_brings_what_was_done_there(origin: LocalStore, target: MemoryStore) -> None:
    stocked.line(origin, "s", 2)
    states(move(origin, target))
    new = stocked.save(target, "s", 3, epoch=5)

    moved = Move(target, origin, Keyring({"k1": b"1" * 32, "k2": b"2" * 32}), trios.RING).session("s")

    assert [cut.state for cut in moved.cuts] == ["there", "there", "copied"]
    assert metas(origin)[0]["checkpoint_id"] == new.checkpoint_id


def test_a_session_that_is_run_at_the_target_is_refused(origin: LocalStore, target: MemoryStore) -> None:
    stocked.line(origin, "s", 1)

    with owning(target), pytest.raises(SessionBusy):
        move(origin, target).session("s")


def test_what_was_gone_back_behind_stays_where_it_is(origin: LocalStore, target: MemoryStore) -> None:
    stocked.line(origin, "s", 3)
    stocked.save(origin, "s", 4, epoch=2, rewinds=[[2, 1]])

    moved = move(origin, target).session("s")

    assert [(cut.state, cut.path[-5]) for cut in moved.cuts] == [
        ("superseded", "2"), ("superseded", "3"), ("copied", "1"), ("copied", "4"),
    ]  # fmt: skip


def test_copies_of_what_was_gone_back_behind_since_are_taken_away(
    origin: LocalStore, target: MemoryStore
) -> None:
    stocked.line(origin, "s", 3)
    states(move(origin, target))
    stocked.save(origin, "s", 4, epoch=2, rewinds=[[2, 1]])

    assert states(move(origin, target)) == ["superseded", "superseded", "there", "copied"]
    assert sorted(meta["sequence"] for meta in metas(target)) == [1, 4]
    assert len(metas(origin)) == 4


def test_a_damaged_one_is_told_and_the_others_are_copied(origin: LocalStore, target: MemoryStore) -> None:
    made = stocked.line(origin, "s", 3)
    values = Path(made[1].path)
    values.write_bytes(values.read_bytes()[:-1] + b"?")
    Path(made[0].path.replace(".pkl", ".meta.json")).write_bytes(b"{")

    moved = move(origin, target).session("s")

    assert [cut.state for cut in moved.cuts] == ["bad", "bad", "copied"]
    assert "corrupted" in str(moved.cuts[1].error)
    assert [meta["sequence"] for meta in metas(target)] == [3]


def test_a_foreign_seal_is_not_copied_unless_it_is_trusted(origin: LocalStore, target: MemoryStore) -> None:
    (made,) = stocked.line(origin, "s", 1)

    (cut,) = move(origin, target, keys=OTHER).session("s").cuts

    assert isinstance(cut.error, UnknownKey)
    assert metas(target) == []
    assert move(origin, target, keys=None).cut(made.path).state == "copied"


def test_a_journal_of_another_key_or_a_damaged_one_is_no_error_of_the_cuts(
    origin: LocalStore, target: MemoryStore
) -> None:
    stocked.line(origin, "s", 1)
    append(origin, 2, 4, after=1)

    moved = move(origin, target).session("s")

    assert [cut.state for cut in moved.cuts] == ["copied"]
    assert isinstance(moved.error, JournalDamaged)


def test_another_checkpoint_of_that_name_is_not_written_over(origin: LocalStore, target: MemoryStore) -> None:
    made = stocked.save(origin, "s", 1, name="best.pkl")
    move(origin, target).cut(made.path)
    newer = stocked.save(origin, "s", 2, name="best.pkl")

    assert move(origin, target).cut(newer.path).state == "copied"
    foreign = stocked.save(origin, "t", 3, name="best.pkl")
    with pytest.raises(CheckpointError, match=r"best\.pkl is another checkpoint"):
        move(origin, target).cut(foreign.path)


def test_one_that_was_deleted_meanwhile_is_gone_and_no_error(origin: LocalStore, target: MemoryStore) -> None:
    (made,) = stocked.line(origin, "s", 1)
    origin.delete(made.path)

    assert move(origin, target).cut(made.path).state == "gone"


def test_a_cut_whose_session_lives_elsewhere_keeps_that_address(
    origin: LocalStore, target: MemoryStore
) -> None:
    made = stocked.save(origin, "s", 1, name="best.pkl", home="sqlite:////srv/runs.db")

    move(origin, target).cut(made.path)

    assert metas(target)[0]["home"] == "sqlite:////srv/runs.db"


def test_a_survey_has_the_sessions_by_their_last_cut_and_what_is_damaged(origin: LocalStore) -> None:
    stocked.save(origin, "new", 1, days=1)
    stocked.save(origin, "old", 1, days=3)
    stocked.save(origin, "kept", 1, days=9)
    Path(origin.folder, "session_lost_step_1_17-1.meta.json").write_bytes(b"{")
    Path(origin.folder, "unknown.meta.json").write_bytes(b"{")

    known = survey(origin)

    assert list(known) == ["", "lost", "kept", "old", "new"]
    assert [cut.path[-11:] for cut in known[""].unreadable] == ["unknown.pkl"]
    assert len(known["lost"].unreadable) == len(known["new"].cuts) == 1


def test_many_sessions_are_copied_with_one_look_at_each_place(
    origin: LocalStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        stocked.line(origin, f"s{number}", 2)
    looks: list[str | None] = []
    real = LocalStore.list

    def listing(store: LocalStore, session: str | None = None, pattern: str | None = None) -> Any:
        looks.append(session)
        return real(store, session, pattern)

    monkeypatch.setattr(LocalStore, "list", listing)

    going = Luggage.all(origin)
    done = travel(Manner(), move(origin, target), going, "")

    assert {cut.state for cut in done.cuts} == {"copied"}
    assert looks.count(None) == 1


@pytest.mark.parametrize("keys", [trios.RING, None])
def test_an_epoch_that_somebody_has_made_up_keeps_nobody_busy(
    origin: LocalStore, target: MemoryStore, keys: Keyring | None
) -> None:
    stocked.line(origin, "s", 2)
    path, raw = next(iter(origin.list("s")))
    Path(path).with_suffix(".meta.json").write_bytes(raw.replace(b'"epoch":1', b'"epoch":1000000000000'))

    if keys is None:  # whoever trusts all of it is told
        with pytest.raises(CheckpointError, match="none gets that far"):
            move(origin, target, keys=keys).session("s")
    else:
        assert sorted(states(move(origin, target, keys=keys))) == ["bad", "copied"]
    assert target.acquire("s").epoch < 1000  # the room is that of other tests, too


# --- histories --------------------------------------------------------------------------


HISTORIES, STEPS = 40, 25


class Broken(BaseException):
    """A process that dies."""


@dataclass
class Session:
    """A session at the origin, as the engine would keep it."""

    store: CheckpointStore
    chance: random.Random
    transition: int = 0
    sequence: int = 0
    rewinds: list[list[int]] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)  # of the line that counts: sequence, transition

    def own(self, rewind_to: int | None = None) -> None:
        self.lease = self.store.acquire("s")
        self.open_journal()
        if rewind_to is not None:
            self.rewinds.append([self.lease.epoch, rewind_to])
            self.cut()

    def open_journal(self) -> None:
        self.after = self.transition
        self.segment = self.store.journal(self.lease, self.transition)
        self.writer = journal.Writer(trios.RING, "s", self.lease.epoch, self.transition)
        self.segment.append(self.writer.head)

    def leave(self) -> None:
        self.segment.close()
        self.lease.release()

    def commit(self) -> None:
        self.transition += 1
        value = bytes([self.chance.randrange(128)])  # two lines of history differ in it
        record = journal.pack(self.transition, 0.0, [("put", "x", value, -1)])
        self.segment.append(self.writer.frame(record))

    def cut(self) -> None:
        self.sequence += 1
        state = trios.state()
        state.sequence = self.transition
        stocked.save(
            self.store, "s", self.sequence, of=state, lease=self.lease, epoch=self.lease.epoch,
            rewinds=list(self.rewinds) or None,
        )  # fmt: skip
        before = self.cuts[-1][1] if self.cuts else 0
        self.cuts.append((self.sequence, self.transition))
        if self.after != self.transition:  # else nothing was appended since it was opened
            self.segment.close()
            self.open_journal()
        self.store.drop_segments("s", before)

    def rewind(self) -> None:
        self.leave()
        self.cuts = self.cuts[: self.chance.randrange(len(self.cuts)) + 1]
        sequence, self.transition = self.cuts[-1]
        self.own(rewind_to=sequence)


def standing(store: CheckpointStore, ring: Keyring) -> tuple[Any, list[bytes]]:
    """What a resume finds: the newest cut, and the records after it."""
    for _, found in history.newest(store, ring, "s"):
        assert isinstance(found, archive.Found)
        after = found.facts["transition"]
        return found.meta["checkpoint_id"], [p for p, _ in history.records(store, ring, after, found, "s")]
    return None, []


def breaking(store: MemoryStore, chance: random.Random, patch: pytest.MonkeyPatch) -> None:
    """The store fails for good after some calls that write."""
    left = chance.randrange(6)

    def counted(real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Broken
            return real(*args, **more)

        return call

    for name in ("put", "journal", "acquire", "delete"):
        patch.setattr(store, name, counted(getattr(store, name)))


@pytest.fixture
def places() -> Iterator[tuple[MemoryStore, MemoryStore]]:
    origin, target = MemoryStore("memory://origin"), MemoryStore("memory://copy")
    yield origin, target
    origin.forget()
    target.forget()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_copy_that_has_ended_stands_where_the_origin_stands(
    seed: int, places: tuple[MemoryStore, MemoryStore]
) -> None:
    origin, target = places
    chance = random.Random(seed)
    session = Session(origin, chance)
    session.own()
    copies = 0

    for _ in range(STEPS):
        match chance.choice(["commit", "commit", "commit", "cut", "resume", "rewind", "copy", "broken"]):
            case "commit":
                session.commit()
            case "cut":
                session.cut()
            case "resume":
                session.leave()
                session.own()
            case "rewind" if session.cuts:
                session.rewind()
            case "copy" if session.cuts:
                Move(origin, target, trios.RING, OTHER).session("s")
                copies += 1
                assert standing(target, OTHER) == standing(origin, trios.RING)
            case "broken":
                with pytest.MonkeyPatch.context() as patch:
                    breaking(target, chance, patch)
                    with suppress(Broken):
                        Move(origin, target, trios.RING, OTHER).session("s")
    session.leave()
    if session.cuts:
        moved = Move(origin, target, trios.RING, OTHER).session("s")
        assert moved.error is None
        assert standing(target, OTHER) == standing(origin, trios.RING)
