"""Checkpoints and journals of a later version, in each kind of store: today's code refuses them by name.

Nothing falls back past them, and nothing of their session is deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, DeleteOnSuccess, KeepLast, OfAll, task, workflow
from graflow_ckpt.checkpoint import archive, history, journal, model
from graflow_ckpt.checkpoint.program.program import Program
from graflow_ckpt.checkpoint.seals.seal import seal
from graflow_ckpt.checkpoint.snapshot import capture, restore
from graflow_ckpt.cli.overview import overview
from graflow_ckpt.core.errors import JournalDamaged, SchemaUnsupported
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring, new_key
from tests.golden import layouts, make
from tests.trios import all_of, writer

NEEDS = "needs rounds, which this graflow-ckpt does not know"


@dataclass
class Place:
    """A store with a session that has run, and the key."""

    url: str
    store: CheckpointStore
    ring: Keyring

    def run(self, **settings: Any) -> Any:
        @task
        def one() -> int:
            return 1

        @task
        def two(one: int) -> int:
            return one + 1

        with workflow("tomorrow", session_id="s", store=self.url, **settings) as flow:
            one >> two
            return flow.execute()

    def newest(self) -> tuple[str, archive.Found]:
        ((path, found), *_) = history.newest(self.store, self.ring, "s")
        assert isinstance(found, archive.Found)
        return path, found

    def save_later(self, **changes: Any) -> str:
        """One more checkpoint of the session, as a later version writes it."""
        path, found = self.newest()
        _, context = archive.load(self.store, self.ring, path)
        state = restore(found.facts, context.payload)
        lease = self.store.acquire("s")
        try:
            sequence = found.metadata.sequence + 1
            later = archive.auto_path(self.store, "s", state.steps, sequence)
            metadata = replace(
                found.metadata, path=later, sequence=sequence, epoch=lease.epoch,
                checkpoint_id=f"chk_{1:032x}", needs=["rounds"], **changes,
            )  # fmt: skip
            program = Program(found.facts["graph"], context.payload["code"], workflow="tomorrow")
            archive.save(self.store, self.ring, lease, capture(state), program, metadata)
        finally:
            lease.release()
        return later

    def plant(self, *, ring: Keyring | None = None, **changes: Any) -> str:
        """Put a checkpoint into the session as no owner does: the newest one, with a changed meta."""
        path, found = self.newest()
        meta = json.loads(self.store.meta(path)) | {"stage": "planted"} | changes
        data = {"meta.json": json.dumps(meta if ring is None else seal(meta, ring)).encode()}
        for part in ("pkl", "state.json"):
            data[part] = all_of(self.store.open(path, part, found.stage))
        planted = archive.auto_path(self.store, "s", 9, 9)
        parts = [(part, writer(data[part])) for part in ("pkl", "state.json", "meta.json")]
        self.store.put(planted, parts, lease=None, stage="planted")
        return planted

    def write_later_journal(self, monkeypatch: pytest.MonkeyPatch, sealed_for: int = 3) -> None:
        lease = self.store.acquire("s")
        with monkeypatch.context() as patch:
            patch.setattr(journal, "FORMAT", journal.FORMAT + 1)
            writer = journal.Writer(self.ring, "s", lease.epoch, sealed_for)
            segment = self.store.journal(lease, 3)
            segment.append(writer.head + writer.frame(b"of another shape"))
            segment.close()
        lease.release()

    def kept(self) -> list[Any]:
        """All checkpoints and all records."""
        segments = [
            (epoch, after, bytes(raw).rstrip(b"\0")) for epoch, after, raw in self.store.segments("s")
        ]
        return [sorted((path, bytes(raw)) for path, raw in self.store.list("s")), segments]


@pytest.fixture(params=["folder", "sqlite", "redis", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    if request.param == "folder":
        url = str(tmp_path / "checkpoints")
        yield Place(url, open_store(url), Keyring.load())
        return
    with layouts.place(request.param, tmp_path) as (url, _):
        if request.param == "postgres":
            from graflow_ckpt.stores.drivers.postgres.store import PostgresStore

            PostgresStore(url).schema.upgrade()
        yield Place(url, open_store(url), Keyring.load())


def test_a_checkpoint_of_today_needs_nothing(place: Place) -> None:
    place.run()

    assert place.newest()[1].meta["needs"] == []


def test_a_session_with_a_later_checkpoint_is_refused_and_does_not_fall_back(place: Place) -> None:
    place.run()
    later = place.save_later(status="running")
    before = place.kept()

    for refused in (
        place.run,
        lambda: CheckpointManager.get_latest("s", store=place.url),
        lambda: CheckpointManager.verify(later, store=place.url),
        lambda: CheckpointManager.resume_from_checkpoint(later, store=place.url),
    ):
        with pytest.raises(SchemaUnsupported, match=NEEDS) as error:
            refused()
        assert "Upgrade graflow-ckpt here" in error.value.hint
        assert error.value.needs == ("rounds",)
    assert place.kept() == before
    (row,) = overview(place.url)
    assert (row.session, row.status) == ("s", "unknown")
    assert "needs rounds" in row.note


def test_nothing_of_a_session_with_a_later_checkpoint_is_pruned(place: Place) -> None:
    place.run()
    place.save_later(status="completed")
    before = place.kept()

    for retention in (OfAll(KeepLast(1)), OfAll(DeleteOnSuccess())):
        pruned = CheckpointManager.prune(retention, store=place.url)
        assert pruned.cuts == ()
        assert {reason for _, reason in pruned.spared} == {"later"}
    assert CheckpointManager.cleanup_old_checkpoints(1, "s", store=place.url) == 0
    assert place.kept() == before


def test_a_later_journal_is_refused_and_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run(durability="journal")
    place.write_later_journal(monkeypatch)
    before = place.kept()

    with pytest.raises(SchemaUnsupported, match=rf"journal of session s .* has format {journal.FORMAT + 1}"):
        place.run(durability="journal")
    pruned = CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=place.url)

    assert pruned.cuts == ()
    assert place.kept() == before


@pytest.mark.parametrize("said", [{"needs": ["rounds"]}, {"schema_version": "9.0"}, {"needs": "all"}])
def test_what_no_seal_holds_for_is_a_bad_checkpoint_and_not_a_later_one(
    place: Place, said: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    place.run()
    good, _ = place.newest()
    planted = place.plant(epoch=9, sequence=9, **said)

    with caplog.at_level(logging.WARNING):
        assert place.run() == 2

    assert planted in caplog.text
    assert CheckpointManager.get_latest("s", store=place.url) != planted
    (row,) = overview(place.url)
    assert (row.status, row.note) == ("completed", "1 newer checkpoint bad")
    pruned = CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=place.url)
    assert good in {cut.path for cut in pruned.cuts}
    assert "later" not in {reason for _, reason in pruned.spared}


def test_what_a_key_that_is_not_here_has_sealed_is_not_continued_and_not_pruned(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run()
    with monkeypatch.context() as patch:
        patch.setenv("GRAFLOW_CKPT_KEY", new_key())
        planted = place.plant(epoch=9, sequence=9, needs=["rounds"], ring=Keyring.load())

    assert place.run() == 2
    assert CheckpointManager.get_latest("s", store=place.url) != planted
    pruned = CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=place.url)
    assert (pruned.cuts, {reason for _, reason in pruned.spared}) == ((), {"later"})


def test_a_later_checkpoint_of_another_session_stops_none_in_whose_place_it_is_put(place: Place) -> None:
    place.run()
    planted = place.plant(session_id="other", needs=["rounds"], ring=place.ring)

    assert place.run() == 2
    assert CheckpointManager.get_latest("s", store=place.url) != planted


def test_a_journal_that_no_seal_holds_for_is_damaged_and_not_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(durability="journal")
    place.write_later_journal(monkeypatch, sealed_for=7)

    with pytest.raises(JournalDamaged):
        place.run(durability="journal")
    pruned = CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=place.url)

    assert pruned.spared == ()
    assert pruned.cuts


def test_a_later_schema_is_refused_if_it_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    url = str(tmp_path / "checkpoints")
    place = Place(url, open_store(url), Keyring.load())
    place.run()
    path, _ = place.newest()
    later = place.plant(schema_version="9.0", sequence="ninth", ring=place.ring)

    with pytest.raises(SchemaUnsupported, match=r"Unsupported checkpoint schema version: 9\.0"):
        place.run()
    assert CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=url).cuts == ()
    assert {path, later} <= {path for path, _ in place.store.list("s")}


def test_what_is_lacking_is_found_in_any_meta() -> None:
    assert model.lacking({"schema_version": model.SCHEMA}) == ()
    assert model.lacking({"schema_version": model.SCHEMA, "needs": ["a", 3]}) == ("a", "3")
    assert model.lacking({"schema_version": [], "needs": "a"}) == ("schema []", "needs")
