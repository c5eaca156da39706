"""What stores have laid out once they can read for ever, go on from, and write beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.codec import decode
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.keys import Keyring
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.testing.trios import held, own_name, path_of, put_holding, there
from tests.golden import layouts, make
from tests.golden.layouts import HELD, HERE, ONE, SOME, THREE, TWO
from tests.object_servers import CREDENTIALS
from tests.servers import Server
from tests.unit.stores.redis_trios import put

FILES = sorted(HERE.glob("layout-*/*"))
CONTENTS = sorted(HERE.glob("contents-*/*"))


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


# --- checkpoints that have contents in common ----------------------------------------------


def test_the_current_layouts_of_contents_are_among_them() -> None:
    kinds = {file.stem for file in CONTENTS if file.parent.name == f"contents-{layouts.CONTENTS}"}

    assert kinds == {"objects", "redis"}


def of_contents(kind: str) -> Any:
    files = [file for file in CONTENTS if file.stem == kind]
    return pytest.mark.parametrize("file", files, ids=lambda file: file.parent.name)


@of_contents("objects")
def test_a_bucket_that_keeps_contents_is_read_and_gone_on_with(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with layouts.place("objects", tmp_path) as (url, server):
        layouts.load("objects", url, server, file.read_text())
        store = ObjectStore(url)

        assert held(store, path_of(store, own_name("s", 1))) == SOME[:2]
        assert held(store, path_of(store, own_name("s", 2))) == SOME[:3]
        assert held(store, path_of(store, "best")) == SOME[2:]
        lease = store.acquire("s", take_over=True)
        assert there(store, SOME) == set(SOME[:3])
        assert store.delete_many([path_of(store, own_name("s", number)) for number in (1, 2)]) == 2
        assert there(store, SOME) == set()
        assert held(store, path_of(store, "best")) == SOME[2:]
        assert store.delete(path_of(store, "best"))
        assert list(store._all.bucket.list("data")) == []
        lease.release()


@of_contents("redis")
def test_contents_are_read_shared_and_let_go_of(file: Path, redis_server: Server, redis_url: str) -> None:
    layouts.load("redis", redis_url, redis_server, file.read_text())
    store = RedisStore(redis_url)
    paths = {name: path_of(store, name) for name in HELD}
    assert {name: held(store, path) for name, path in paths.items()} == HELD

    third = put_holding(store, own_name(sequence=3), "new", [TWO])
    assert store.delete_many(paths.values()) == 3

    assert held(store, third) == [TWO]
    assert there(store, [ONE, TWO, THREE], own_name()) == {TWO}
    assert store.delete(third)
    assert redis_server.ask("KEYS", "*:contents*") == []
