"""Checkpoints and journals of a later version, in each kind of store: today's code refuses them by name.

Nothing falls back past them, and nothing of their session is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, DeleteOnSuccess, KeepLast, OfAll, task, workflow
from graflow_ckpt.checkpoint import archive, history, journal, model
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.program import Program
from graflow_ckpt.checkpoint.snapshot import capture, restore
from graflow_ckpt.core.errors import SchemaUnsupported
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.interfaces.cli.overview import overview
from graflow_ckpt.stores import open_store
from tests.golden import layouts, make

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

    def write_later_journal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lease = self.store.acquire("s")
        with monkeypatch.context() as patch:
            patch.setattr(journal, "FORMAT", journal.FORMAT + 1)
            writer = journal.Writer(self.ring, "s", lease.epoch, 3)
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
            from graflow_ckpt.stores.postgres import PostgresStore

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


def test_a_later_schema_whose_meta_cannot_be_read_keeps_its_session(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    url = str(tmp_path / "checkpoints")
    place = Place(url, open_store(url), Keyring.load())
    place.run()
    path, _ = place.newest()
    stranger = Path(f"{url}/session_s_step_9_{int(time.time())}-9.meta.json")
    stranger.write_text('{"schema_version": "9.0", "all": "else"}')
    stranger.chmod(0o600)

    with pytest.raises(SchemaUnsupported, match=r"Unsupported checkpoint schema version: 9\.0"):
        place.run()
    assert CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=url).cuts == ()
    assert stranger.exists()
    assert Path(path).exists()


def test_what_is_lacking_is_found_in_any_meta() -> None:
    assert model.lacking({"schema_version": model.SCHEMA}) == ()
    assert model.lacking({"schema_version": model.SCHEMA, "needs": ["a", 3]}) == ("a", "3")
    assert model.lacking({"schema_version": [], "needs": "a"}) == ("schema []", "needs")
