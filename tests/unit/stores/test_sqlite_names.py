"""From a path to a database and a name in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.names import path_of, session_of
from graflow_ckpt.stores.sqlite_names import file_of, folder_of, is_sqlite, own_file, split

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
