"""The SQLite store as the layers above use it: paths, listings, filters, and what is refused."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound
from graflow_ckpt.stores import folder_on_disk, home_of, open_store, open_store_of, store_of
from graflow_ckpt.stores.drivers.sqlite.names import file_of, folder_of, is_sqlite, own_file, split
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.names import path_of, session_of
from tests.unit.stores.texts import own_name, put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "x.db")
    yield store
    store.close()


# --- paths -----------------------------------------------------------------------------


def test_a_database_is_a_store_that_is_made_by_the_first_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///new/x.db")

    assert isinstance(store, SqliteStore)
    assert store.url == store.folder == f"sqlite:///{tmp_path}/new/x.db"
    assert (store.shared, store.synced) == (False, True)
    assert (list(store.list()), store.newest(50), store.owner("s")) == ([], [], None)
    assert (list(store.segments("s")), store.delete("best"), store.delete_many(["best"])) == ([], False, 0)
    store.drop_segments("s", 1)
    with pytest.raises(CheckpointNotFound):
        store.meta("best")
    assert os.listdir(tmp_path) == []

    put(store, "best", "one")

    assert os.stat(tmp_path / "new").st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "new/x.db").st_mode & 0o777 == 0o600
    assert os.stat(tmp_path / "new/x.db-wal").st_mode & 0o777 == 0o600


def test_a_path_leads_to_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(SqliteStore("sqlite:///x.db"), "best", "one")

    assert store_of("sqlite:///x.db/best") == "sqlite:///x.db"
    assert store_of("sqlite://best") == "sqlite://"
    assert json.loads(open_store_of("sqlite:///x.db/best").meta("sqlite:///x.db/best"))["stage"] == "one"


@pytest.mark.parametrize("name", ["", "a/b", "a\0b", "\udcff"])
def test_what_cannot_be_a_name_is_refused(name: str, store: SqliteStore) -> None:
    with pytest.raises(CheckpointError, match="no name"):
        store.meta(name)


def test_the_home_of_a_session_is_taken_where_it_can_be_had(store: SqliteStore, tmp_path: Path) -> None:
    assert home_of(store.url) is None
    store.probe()
    assert home_of(store.url) == store.url
    assert folder_on_disk(store) == str(tmp_path)
    assert folder_on_disk(LocalStore(tmp_path)) == str(tmp_path)


def test_a_folder_is_no_database_and_says_how_a_checkpoint_is_called(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}")

    for call in (store.probe, lambda: list(store.list())):
        with pytest.raises(CheckpointError, match=r"is a folder.*FILE.db/NAME"):
            call()


def test_who_could_have_written_it_is_told(store: SqliteStore, tmp_path: Path) -> None:
    put(store, "best", "one")
    assert store.unsafe("best") is None

    os.chmod(store.file, 0o666)
    assert "can be written by everybody (mode 0666)" in str(store.unsafe("best"))
    os.chmod(store.file, 0o600)
    os.chmod(tmp_path, 0o777)
    assert "everybody can put files into" in str(store.unsafe("best"))
    os.chmod(tmp_path, 0o700)


def test_a_meta_that_is_larger_than_any_is_not_read(store: SqliteStore) -> None:
    put(store, "best", "one")
    with closing(sqlite3.connect(store.file)) as connection, connection:
        connection.execute("UPDATE metas SET data = zeroblob(65 << 20)")

    assert store.meta("best") == b""
    assert [raw for _, raw in store.list()] == [b""]


@pytest.mark.parametrize(
    ("block", "free", "refused"), [(1024, 64, True), (1024, 200, False), (4096, 1, False)]
)
def test_a_full_file_system_of_small_blocks_is_refused_before_its_memory_is_mapped(
    block: int, free: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would touch pages of its index that have no blocks, and the process would end by SIGBUS."""
    really = os.statvfs

    def small(path: str) -> os.statvfs_result:
        return os.statvfs_result((block, block, *really(path)[2:4], free, *really(path)[5:]))

    monkeypatch.setattr(os, "statvfs", small)
    store = open_store(f"sqlite:///{tmp_path}/runs.db")

    if refused:
        with pytest.raises(CheckpointError, match="No space left"):
            put(store, own_name("s"), "one")
    else:
        put(store, own_name("s"), "one")


# --- names and addresses ----------------------------------------------------------------


OWN = "session_s_step_1_1700000000-1"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("store", "file"),
    [
        ("sqlite:///x.db", "{here}/x.db"),
        ("SQLITE:///a/../b/x.db", "{here}/b/x.db"),
        ("sqlite:////srv/x.db", "/srv/x.db"),
        ("sqlite:///with space #1.db", "{here}/with space #1.db"),
        ("sqlite://", "/data/graflow_ckpt/checkpoints.db"),
        ("sqlite:///", "/data/graflow_ckpt/checkpoints.db"),
    ],
)
def test_three_slashes_are_a_file_here_and_four_an_absolute_one(
    store: str, file: str, tmp_path: Path
) -> None:
    found = file_of(store, {"XDG_DATA_HOME": "/data"})

    assert found == file.format(here=tmp_path)
    assert file_of(folder_of(found)) == found


@pytest.mark.parametrize("wrong", ["sqlite://x.db", "sqlite://host/x.db", "sqlite:///x.db?mode=ro"])
def test_what_is_no_database_says_how_one_is_written(wrong: str) -> None:
    with pytest.raises(CheckpointError, match=r"sqlite:///\w+"):
        file_of(wrong)


def test_a_database_in_memory_is_another_store() -> None:
    with pytest.raises(CheckpointError, match=r"Use memory:"):
        file_of("sqlite:///:memory:")


def test_the_users_own_is_in_the_data_folder() -> None:
    assert own_file({"XDG_DATA_HOME": "relative", "HOME": "/home/u"}) == (
        "/home/u/.local/share/graflow_ckpt/checkpoints.db"
    )
    assert own_file({}) == os.path.expanduser("~/.local/share/graflow_ckpt/checkpoints.db")


@pytest.mark.parametrize(
    ("path", "store", "name"),
    [
        ("sqlite:///x.db/best", "sqlite:///x.db", "best"),
        ("sqlite:///a/x.db/best.pkl", "sqlite:///a/x.db", "best"),
        ("sqlite:////srv/x.db/best.state.json", "sqlite:////srv/x.db", "best"),
        (f"sqlite:////srv/x.db/{OWN}.pkl", "sqlite:////srv/x.db", OWN),
        ("sqlite:///x.db/what?*", "sqlite:///x.db", "what?*"),
        ("sqlite://best", "", "best"),
        ("sqlite:///x.db", "sqlite:///x.db", ""),
    ],
)
def test_a_path_is_a_database_and_a_name(path: str, store: str, name: str) -> None:
    assert split(path) == (store, name)


def test_only_a_sessions_own_name_is_listed_with_its_suffix() -> None:
    assert path_of("sqlite:////x.db", OWN) == f"sqlite:////x.db/{OWN}.pkl"
    assert path_of("sqlite:////x.db", "best") == "sqlite:////x.db/best"
    assert session_of(OWN) == "s"
    assert session_of("best") is None


def test_a_file_that_is_called_like_it_is_none() -> None:
    assert is_sqlite("SQLite://x")
    assert not is_sqlite("sqlite.db")
    assert not is_sqlite("redis://sqlite")
