"""A new key takes over: metas are written anew, values are not touched, and what was doubtful stays so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.checkpoint import archive, journal
from graflow_ckpt.checkpoint.care import resealing
from graflow_ckpt.checkpoint.care.resealing import Resealed, reseal, usage
from graflow_ckpt.core.protocols import CheckpointStore, PartWriter, Source
from graflow_ckpt.stores.around.encoded import Encrypted
from graflow_ckpt.stores.around.encodings import AEAD, key_in
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.around.tenant import Tenant
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.trios import named, owning, path_of, put_meta, writer
from tests.unit.checkpoint.trios import save

OLD, NEW = Keyring({"old": b"o" * 32}), Keyring({"new": b"n" * 32, "old": b"o" * 32})
ALONE = Keyring({"new": b"n" * 32})
ROOM = "memory://resealing"

Open = Callable[[Keyring], CheckpointStore]


@pytest.fixture
def room() -> MemoryStore:
    store = MemoryStore(ROOM)
    store.forget()
    return store


@pytest.fixture(params=["local", "memory", "sqlite", "encrypted", "tenant"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    kinds: dict[str, Open] = {
        "local": lambda ring: LocalStore(tmp_path / "cp"),
        "memory": lambda ring: MemoryStore(ROOM),
        "sqlite": lambda ring: SqliteStore(tmp_path / "runs.db"),
        "encrypted": lambda ring: Encrypted(MemoryStore(ROOM), ring),
        "tenant": lambda ring: Tenant(Encrypted(LocalStore(tmp_path / "cp"), ring), "acme"),
    }
    MemoryStore(ROOM).forget()
    return kinds[request.param]


def filled(store: CheckpointStore, ring: Keyring = OLD, sessions: str = "ab") -> list[str]:
    """Three checkpoints of each session, and one under another name; their paths, the newest first."""
    paths = []
    for sequence in (1, 2, 3):
        for session in sessions:
            name = f"session_{session}_step_{sequence}_1700000000-{sequence}.pkl"
            paths.append(_save(store, name, ring, session, sequence))
    paths.append(_save(store, "best", ring, sessions[0], 3))
    return paths[::-1]


def _save(store: CheckpointStore, name: str, ring: Keyring, session: str, sequence: int) -> str:
    path = path_of(store, name)
    save(Path(), path=path, session=session, sequence=sequence, ring=ring, store=store)
    return path


def test_all_are_sealed_with_the_newest_key_and_nothing_else_changes(opened: Open) -> None:
    store = opened(OLD)
    paths = filled(store)
    before = {path: archive.load(store, OLD, path)[0] for path in paths}
    order = [path.removesuffix(".pkl") for path, _ in store.newest(100)]

    done = reseal(opened(NEW), NEW)

    assert done == Resealed(7)
    after = opened(ALONE)  # the old key can be taken away
    for path in paths:
        found, _ = archive.load(after, ALONE, path)
        assert found.meta["key_id"] == "new"
        changed = {name for name in found.meta if found.meta[name] != before[path].meta[name]}
        assert changed == {"key_id", "seal"} | ({"encoding"} & found.meta.keys())
        assert found.facts == before[path].facts
    if "memory" in store.url or "sqlite" in store.url:  # those know the order of commits
        assert [path.removesuffix(".pkl") for path, _ in after.newest(100)] == order
    assert reseal(opened(NEW), NEW) == Resealed(0)


def test_no_value_is_read_or_written(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(NEW)
    filled(store)
    inner = store.inner if isinstance(store, Tenant | Encrypted) else store
    opening, putting = inner.open, inner.put

    def read(path: str, part: str, stage: str) -> Source:
        assert part != "pkl"
        return opening(path, part, stage)

    def put(path: str, parts: list[tuple[str, PartWriter]], **given: object) -> None:
        assert [part for part, _ in parts] == ["meta.json"]
        putting(path, parts, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(inner, "open", read)
    monkeypatch.setattr(inner, "put", put)

    assert reseal(store, NEW).done == 7


def test_a_session_that_somebody_runs_is_left_alone(opened: Open) -> None:
    store = opened(OLD)
    paths = filled(store)

    with owning(store, "a") as lease:
        done = reseal(opened(NEW), NEW)
        lease.check()

    assert done.done == 3
    stays = {named(path) for path, _ in done.stays}
    assert stays == {named(path) for path in paths if "session_b_" not in path}
    assert {why for _, why in done.stays} == {"session a is being run"}
    assert reseal(opened(NEW), NEW) == Resealed(4)


def test_what_does_not_verify_stays_as_it_is(room: MemoryStore) -> None:
    store, paths = room, filled(room, sessions="a")
    changed = json.loads(store.meta(paths[1])) | {"steps": 99}
    foreign = Keyring({"foreign": b"f" * 32})
    meta = ("meta.json", writer(json.dumps(changed).encode()))
    store.put(paths[1], [meta], lease=None, stage=changed["stage"])
    _save(store, "foreign", foreign, "b", 1)

    done = reseal(store, NEW)

    assert done.done == 3
    stays = {path.rpartition("/")[2] for path, _ in done.stays}
    assert stays == {"session_a_step_3_1700000000-3.pkl", "foreign"}
    assert json.loads(store.meta(paths[1]))["key_id"] == "old"


def test_what_is_deleted_meanwhile_does_not_come_back(
    room: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, paths = room, filled(room, sessions="a")
    putting = store.put

    def put(path: str, parts: list[tuple[str, PartWriter]], **given: object) -> None:
        if path.startswith(paths[2].removesuffix(".pkl")):
            store.delete(path)
        putting(path, parts, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "put", put)

    done = reseal(store, NEW)

    assert done.done == 3
    assert len(done.stays) == 1
    assert len(list(store.list())) == 3


def test_it_counts_what_needs_each_key(room: MemoryStore) -> None:
    store = Encrypted(room, OLD)
    filled(store, sessions="a")
    both = Encrypted(room, NEW)
    _save(both, "session_b_step_1_1700000000-1.pkl", NEW, "b", 1)
    with owning(both, "b") as lease:
        segment = both.journal(lease, 1)
        segment.append(journal.Writer(OLD, "b", lease.epoch, 1, (AEAD,)).head)
        segment.close()
    put_meta(room, "plain", b"{}")

    found = usage(both)

    assert found.seals == {"old": 4, "new": 1}
    assert found.encrypts == {"old": 4, "new": 1, "": 1}
    assert found.journals == {"old": 1}
    assert found.unreadable == 1
    assert found.ids == {"old", "new"}


def test_a_journal_whose_key_is_not_here_is_counted_under_it(room: MemoryStore) -> None:
    store = Encrypted(room, OLD)
    filled(store, sessions="a")
    with owning(store, "a") as lease:
        store.journal(lease, 1).append(journal.Writer(OLD, "a", lease.epoch, 1, (AEAD,)).head)
    reseal(Encrypted(room, NEW), NEW)

    assert usage(Encrypted(room, ALONE)).journals == {"old": 1}


def test_what_is_encrypted_with_an_older_key_is_written_anew_also_if_its_seal_is_new(
    room: MemoryStore,
) -> None:
    filled(Encrypted(room, OLD), NEW, sessions="a")
    store = Encrypted(room, NEW)

    assert reseal(store, NEW) == Resealed(4)

    assert {key_in(json.loads(raw)) for _, raw in store.list()} == {"new"}
    assert reseal(store, NEW) == Resealed(0)


def test_who_watches_is_told_how_far_it_is(room: MemoryStore) -> None:
    filled(room, sessions="a")
    seen: list[tuple[int, int]] = []

    reseal(room, NEW, lambda done, count: seen.append((done, count)))

    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_what_takes_the_place_of_a_checkpoint_that_is_being_sealed_stays_whole(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session writes under the same name, between the look at a meta and the new seal."""
    store = opened(NEW)
    path = _save(store, "best", OLD, "a", 1)
    sealed = resealing.put_sealed

    def late(*given: Any) -> None:
        _save(store, "best", OLD, "b", 7)
        sealed(*given)

    monkeypatch.setattr(resealing, "put_sealed", late)

    done = reseal(store, NEW)

    assert (done.done, len(done.stays)) == (0, 1)
    assert "another checkpoint has taken its place" in done.stays[0][1]
    assert archive.load(opened(NEW), NEW, path)[0].metadata.session_id == "b"
