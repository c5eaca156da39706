"""What stores have laid out once they can read for ever, go on from, and write beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.checkpoint.values.codec import decode
from graflow_ckpt.core.errors import SchemaUnsupported
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import lease as lease_module
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring
from tests import things
from tests.golden import layouts, make
from tests.golden.layouts import HERE, SOME
from tests.object_servers import CREDENTIALS
from tests.trios import held, own_name, path_of, put, put_holding, there

FILES = sorted(HERE.glob("layout-*/*"))


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
    assert list(store.newest(5, session="golden")) == [(path, meta)]

    lease = store.acquire("golden")
    put(store, own_name("golden", 7), "new", lease=lease, session="golden")

    assert lease.epoch > 4
    assert [found for found, _ in store.newest(5, session="golden")][1:] == [path]
    assert store.delete(path)
    assert len(list(store.list("golden"))) == 1
    lease.release()


def test_a_head_of_a_later_format_is_refused_by_name_and_stays_as_it_is(store: CheckpointStore) -> None:
    later = things.read(store, "head/golden").replace(b"{", b'{"format":2,', 1)
    things.write(store, "head/golden", later)

    for refused in (store.acquire, store.owner, store.delete):
        with pytest.raises(SchemaUnsupported, match="later version"):
            refused(path_of(store, own_name("golden", 1)) if refused == store.delete else "golden")

    assert things.read(store, "head/golden") == later
    assert path_of(store, own_name("s", 1)) in [path for path, _ in store.list()]


# --- checkpoints that have contents in common ----------------------------------------------


def test_contents_are_read_shared_and_let_go_of(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "LIFE", -60.0)  # the save that has died is older than a day
    one, two, three = (path_of(store, name) for name in (own_name("s", 1), own_name("s", 2), "best"))
    assert (held(store, one), held(store, two), held(store, three)) == (
        SOME[:2],
        [SOME[0], SOME[2]],
        SOME[2:],
    )
    assert there(store, SOME) == {SOME[0], SOME[2]}  # one of them is damaged

    lease = store.acquire("s", take_over=True)
    assert lease.epoch == 2
    fourth = put_holding(store, own_name(sequence=4), "new", [SOME[2]], lease=lease)
    assert store.delete_many([one, two]) == 2

    assert (held(store, fourth), held(store, three)) == ([SOME[2]], SOME[2:])
    assert there(store, SOME) <= {SOME[0], SOME[2]}  # what goes while somebody owns the session may be found
    assert store.delete_many([fourth, three, *(path for path, _ in store.list("golden"))]) == 3
    lease.release()
    store.acquire("s").release()
    assert there(store, SOME) == set()
    assert things.keys(store, "data/") == []
