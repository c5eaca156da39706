"""The audit: what belongs to no checkpoint is found, and what belongs to one is not mentioned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import metadata_of
from graflow_ckpt.checkpoint.care.inventory import audit
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.checkpoint.values.codec import encode
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.around.retrying import Retrying
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import new_mark
from tests import things
from tests.unit.checkpoint import stocked, trios
from tests.unit.checkpoint.care.test_copying import append


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> LocalStore:
    return LocalStore(folder)


def kinds(store: CheckpointStore) -> list[tuple[str, str]]:
    return sorted((orphan.kind, orphan.session) for orphan in audit(store).orphans)


def test_a_store_that_is_as_it_should_be_has_no_orphans(store: LocalStore) -> None:
    stocked.line(store, "s", 3)
    stocked.save(store, "s", 4, name="best.pkl")
    append(store, 2, 3, after=1)

    found = audit(store)

    assert (found.checkpoints, found.orphans, found.whole) == (4, (), True)
    assert audit(LocalStore(f"{store.folder}/none")).orphans == ()


def test_parts_without_their_meta_are_found(store: LocalStore, folder: Path) -> None:
    made = stocked.line(store, "s", 2)
    os.unlink(made[0].path.replace(".pkl", ".meta.json"))

    assert kinds(store) == [("part", "s"), ("part", "s")]
    assert audit(store).size > 0


def test_checkpoints_that_lack_a_part_or_are_cut_short_are_found(store: LocalStore) -> None:
    made = stocked.line(store, "s", 3)
    os.unlink(made[0].path)
    Path(made[1].path).write_bytes(b"short")
    Path(made[2].path.replace(".pkl", ".meta.json")).write_bytes(b"{")

    found = audit(store)

    assert sorted(orphan.kind for orphan in found.orphans) == ["lacking", "lacking", "unreadable"]
    assert {orphan.name for orphan in found.orphans} == {cut.path for cut in made}
    assert any("it has 5 bytes" in orphan.why for orphan in found.orphans)


def test_what_a_dead_save_has_left_is_found_and_what_a_live_one_writes_is_not(
    store: LocalStore, folder: Path
) -> None:
    (made,) = stocked.line(store, "s", 1)
    base = made.path.removesuffix(".pkl")
    Path(f"{base}.abc.pkl.tmp").write_bytes(b"staged")

    assert kinds(store) == [("staged", "s")]
    lease = store.acquire("t")
    Path(folder, "session_t_step_1_17-1.abc.pkl.tmp").write_bytes(b"staged")
    assert kinds(store) == [("staged", "s")]
    lease.release()
    assert kinds(store) == [("staged", "s"), ("staged", "t")]


def test_a_committed_checkpoint_under_its_staged_names_is_none(store: LocalStore) -> None:
    import json

    (made,) = stocked.line(store, "s", 1)
    base = made.path.removesuffix(".pkl")
    stage = json.loads(Path(f"{base}.meta.json").read_bytes())["stage"]
    os.rename(made.path, f"{base}.{stage}.pkl.tmp")

    assert kinds(store) == []


def test_journals_of_no_session_and_foreign_files_are_found(store: LocalStore, folder: Path) -> None:
    stocked.line(store, "t", 1)
    append(store, 2, after=1)
    Path(folder, "notes.txt").write_text("mine")

    assert kinds(store) == [("foreign", ""), ("journal", "s")]
    assert all(orphan.advice for orphan in audit(store).orphans)


def test_a_database_is_looked_into(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/s.db")
    assert kinds(store) == []
    stocked.line(store, "s", 3)
    stocked.save(store, "t", 1)
    append(store, 2, after=1)
    assert kinds(store) == []

    things.write(store, f"data/s/{new_mark(1)}/000000", b"of an owner")
    things.drop(store, ["head/s", *(key for key in things.keys(store, "data/s/") if "/m." in key)])

    assert sorted(set(kinds(store))) == [("journal", "s"), ("staged", "s")]


def test_of_other_stores_it_says_that_it_has_not_looked_everywhere() -> None:
    inner = MemoryStore("memory://audited")
    stocked.line(inner, "s", 1)

    found, beyond = audit(inner), audit(Retrying(inner))

    assert (found.checkpoints, found.orphans, found.whole) == (1, (), True)
    assert (beyond.checkpoints, beyond.orphans, beyond.whole) == (1, (), False)
    inner.forget()


def test_what_a_checkpoint_shares_is_missed(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/shared.db")
    snapshot = capture(trios.state("s", ("put", "large", encode(b"x" * 100_000), -1)))
    snapshot.facts["epoch"] = 1
    path = f"{store.folder}/session_s_step_1_17-1.pkl"
    meta = metadata_of(snapshot, stocked._program, path=path, sequence=1, cause="policy", user=None)
    archive.save(store, trios.RING, None, snapshot, stocked._program, meta)
    assert audit(store).orphans == ()
    things.drop(store, things.keys_of_contents(store))

    (orphan,) = audit(store).orphans

    assert orphan.kind == "lacking"
    assert orphan.why.startswith("content ")
