"""Repairing: the damaged bytes are kept, good copies take their place, and nothing else is touched."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.auditing import audit
from graflow_ckpt.checkpoint.codec import encode
from graflow_ckpt.checkpoint.copying import Move
from graflow_ckpt.checkpoint.describing import metadata_of
from graflow_ckpt.checkpoint.repairing import Damage, Repair, copy_of, meant
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.errors import CheckpointNotFound
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_schema import FIRST_CONTENT
from tests.unit.checkpoint import stocked, trios
from tests.unit.checkpoint.test_copying import append, replayed


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def work(store: LocalStore, tmp_path: Path) -> Repair:
    return Repair(store, trios.RING, f"{tmp_path}/aside")


def damages(work: Repair) -> list[Damage]:
    paths, sessions = meant(work.store)
    return [*work.look(paths), *work.look_at_journals(sessions)]


def spoil(path: str, part: str = "pkl") -> bytes:
    file = Path(path.removesuffix("pkl") + part)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    return file.read_bytes()


def test_only_what_is_damaged_is_found(store: LocalStore, work: Repair) -> None:
    made = stocked.line(store, "s", 3)
    spoil(made[1].path)

    assert [damage.path for damage in damages(work)] == [made[1].path]


def test_its_bytes_are_kept_before_it_is_taken_away(store: LocalStore, work: Repair) -> None:
    made = stocked.line(store, "s", 2)
    spoiled = spoil(made[1].path)
    (damage,) = damages(work)

    done = work.mend(damage)

    assert done.done == "set aside"
    assert Path(done.kept[1]).read_bytes() == spoiled
    assert [os.path.basename(file) for file in done.kept] == [
        "session_s_step_2_17-2.meta.json", "session_s_step_2_17-2.pkl", "session_s_step_2_17-2.state.json",
    ]  # fmt: skip
    assert os.stat(done.kept[1]).st_mode & 0o777 == 0o600
    with pytest.raises(CheckpointNotFound):
        store.meta(made[1].path)
    assert stocked.left(store) == ["s1"]


def test_a_damaged_meta_is_kept_with_its_parts(store: LocalStore, work: Repair) -> None:
    (made,) = stocked.line(store, "s", 1)
    Path(made.path.replace(".pkl", ".meta.json")).write_bytes(b"{")

    (damage,) = damages(work)

    assert damage.session == "s"
    assert len(work.mend(damage).kept) == 3
    assert damages(work) == []


def test_what_is_kept_twice_stays_twice(store: LocalStore, work: Repair) -> None:
    for _ in range(2):
        (made,) = stocked.line(store, "s", 1)
        spoil(made.path)
        work.mend(damages(work)[0])

    assert len(os.listdir(work.aside)) == 6


@pytest.mark.parametrize("part", ["pkl", "state.json", "meta.json"])
def test_a_good_copy_takes_its_place(store: LocalStore, work: Repair, tmp_path: Path, part: str) -> None:
    (made,) = stocked.line(store, "s", 1)
    copies = SqliteStore(f"sqlite:///{tmp_path}/copies.db")
    Move(store, copies, trios.RING, trios.RING).session("s")
    spoil(made.path, part)
    work = Repair(store, trios.RING, work.aside, copies, trios.RING, copy_of(copies))

    (damage,) = damages(work)
    done = work.mend(damage)

    assert (done.done, len(done.kept)) == ("replaced", 3)
    assert archive.load(store, trios.RING, made.path)[0].metadata.checkpoint_id == made.checkpoint_id


def test_another_checkpoint_of_the_same_name_is_no_copy(
    store: LocalStore, work: Repair, tmp_path: Path
) -> None:
    (made,) = stocked.line(store, "s", 1)
    copies = LocalStore(tmp_path / "copies")
    stocked.line(copies, "s", 1)
    spoil(made.path)

    (damage,) = damages(Repair(store, trios.RING, work.aside, copies, trios.RING, copy_of(copies)))

    assert damage.good == ""


def test_what_cannot_be_read_is_not_taken_away_unless_it_is_wanted(store: LocalStore, work: Repair) -> None:
    (made,) = stocked.line(store, "s", 1)
    os.unlink(made.path)
    (damage,) = damages(work)

    done = work.mend(damage)
    assert (done.done, len(done.kept)) == ("left", 2)
    assert "pkl cannot be read" in done.why
    assert store.meta(made.path)

    forced = Repair(store, trios.RING, work.aside, force=True)
    assert forced.mend(damage).done == "set aside"


def test_foreign_unsealed_and_newer_ones_are_no_damage(store: LocalStore, work: Repair) -> None:
    def rewritten(path: str, **fields: Any) -> None:
        file = Path(path.replace(".pkl", ".meta.json"))
        meta = {**json.loads(file.read_bytes()), **fields}
        file.write_text(json.dumps({name: value for name, value in meta.items() if value is not None}))

    foreign, unsealed, newer, changed = stocked.line(store, "s", 4)
    rewritten(foreign.path, key_id="another")
    rewritten(unsealed.path, seal=None, key_id=None)
    rewritten(newer.path, schema_version="9.0")
    rewritten(changed.path, steps=77)

    assert [damage.path for damage in damages(work)] == [changed.path]


def test_a_session_that_is_run_is_left_alone(store: LocalStore, work: Repair) -> None:
    (made,) = stocked.line(store, "s", 1)
    spoil(made.path)
    lease = store.acquire("s")

    done = work.mend(damages(work)[0])

    assert (done.done, done.why) == ("left", "session s is being run")
    lease.release()


@pytest.mark.parametrize("kind", ["local", "sqlite"])
def test_of_a_damaged_journal_what_is_before_the_damage_counts(
    kind: str, tmp_path: Path, work: Repair
) -> None:
    store: Any = work.store if kind == "local" else SqliteStore(f"sqlite:///{tmp_path}/s.db")
    stocked.line(store, "s", 1)
    append(store, 2, 3, 5, 6, after=1)  # 4 is missing
    work = Repair(store, trios.RING, work.aside)
    (damage,) = damages(work)

    done = work.mend(damage)

    assert (done.done, done.records) == ("set aside", 2)
    assert replayed(store, trios.RING) == [2, 3]
    assert damages(work) == []
    assert b"GJ" in Path(done.kept[0]).read_bytes()


def shared(tmp_path: Path) -> tuple[SqliteStore, str]:
    """A store with a checkpoint whose large value is kept as a content."""
    store = SqliteStore(f"sqlite:///{tmp_path}/shared.db")
    snapshot = capture(trios.state("s", ("put", "large", encode(b"x" * 100_000), -1)))
    snapshot.facts["epoch"] = 1
    path = f"{store.folder}/session_s_step_1_17-1.pkl"
    meta = metadata_of(snapshot, stocked._program, path=path, sequence=1, cause="policy", user=None)
    archive.save(store, trios.RING, None, snapshot, stocked._program, meta)
    return store, f"{tmp_path}/shared.db"


def test_what_it_shares_with_others_is_kept_aside_with_it(tmp_path: Path, work: Repair) -> None:
    store, file = shared(tmp_path)
    with closing(sqlite3.connect(file)) as database, database:
        spoiled = "UPDATE chunks SET bytes = zeroblob(length(bytes)) WHERE id >= ?"
        assert database.execute(spoiled, (FIRST_CONTENT << 20,)).rowcount
    database.close()
    work = Repair(store, trios.RING, work.aside)

    (damage,) = damages(work)
    done = work.mend(damage)

    (content,) = [file for file in done.kept if file.endswith(".content")]
    kept = Path(content).read_bytes()
    assert (len(kept) >= 100_000, set(kept)) == (True, {0})
    assert done.done == "set aside"


def test_an_audit_misses_what_a_checkpoint_shares(tmp_path: Path) -> None:
    store, file = shared(tmp_path)
    assert audit(store).orphans == ()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DELETE FROM holds")
    database.close()

    (orphan,) = audit(store).orphans

    assert orphan.kind == "lacking"
    assert orphan.why.startswith("content ")
