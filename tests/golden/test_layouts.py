"""What stores have laid out once they can read for ever, go on from, and write beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.codec import decode
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.keys import Keyring
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.testing.holdings import held, there
from graflow_ckpt.testing.trios import own_name, path_of
from tests.golden import layouts, make, make_contents
from tests.object_servers import CREDENTIALS
from tests.unit.stores.redis_trios import put

FILES = sorted(Path(__file__).parent.glob("layout-*/*"))


@pytest.fixture(params=FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CheckpointStore]:
    """A store of that kind with what the file has."""
    file: Path = request.param
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with layouts.place(file.stem, tmp_path) as (url, server):
        layouts.load(file.stem, url, server, file.read_text())
        yield open_store(url)


def test_each_kind_of_store_has_the_current_layout() -> None:
    assert {file.stem for file in FILES if file.parent.name == f"layout-{layouts.NUMBER}"} == set(
        layouts.KINDS
    )


def test_the_session_goes_on_from_its_checkpoint_and_its_journal(store: CheckpointStore) -> None:
    ring = Keyring.load()
    ((path, found),) = history.newest(store, ring, "golden")
    assert isinstance(found, archive.Found)

    found, context = archive.load(store, ring, path)
    state = restore(found.facts, context.payload)
    applied = history.replay(store, ring, state, found, "golden")

    assert (applied, state.sequence, state.status) == (3, 9, "failed")
    assert state.completed == {"prepare": 1, "right": 2}
    values = {name: cell[0] for name, cell in state.values.items()}
    for name, expected in {**make.VALUES, "numbers": [7]}.items():
        cell = values[name]
        assert isinstance(cell, bytes)
        assert decode(cell) == expected
    assert context.payload["live"] == {"live": make.LIVE}


def test_its_next_owner_has_a_higher_epoch_and_writes_beside_it(store: CheckpointStore) -> None:
    ((path, meta),) = store.list("golden")
    assert list(store.newest(5)) == [(path, meta)]

    lease = store.acquire("golden")
    put(store, own_name("golden", 7), "new", lease, session="golden")

    assert lease.epoch > 4
    assert [found for found, _ in store.newest(5)][1:] == [path]
    assert store.delete(path)
    assert len(list(store.list("golden"))) == 1
    lease.release()


def test_a_bucket_that_keeps_contents_is_read_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    some = make_contents.SOME
    with layouts.place("objects", tmp_path) as (url, server):
        layouts.load("objects", url, server, make_contents.FILE.read_text())
        store = ObjectStore(url)

        assert held(store, path_of(store, own_name("s", 1))) == some[:2]
        assert held(store, path_of(store, own_name("s", 2))) == some[:3]
        assert held(store, path_of(store, "best")) == some[2:]
        lease = store.acquire("s", take_over=True)
        assert there(store, some) == set(some[:3])
        assert store.delete_many([path_of(store, own_name("s", number)) for number in (1, 2)]) == 2
        assert there(store, some) == set()
        assert held(store, path_of(store, "best")) == some[2:]
        assert store.delete(path_of(store, "best"))
        assert list(store._all.bucket.list("data")) == []
        lease.release()
