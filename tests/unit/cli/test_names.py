"""What file names alone tell the completion of a shell."""

from __future__ import annotations

from pathlib import Path

from graflow_ckpt.cli.options import checkpoint_paths, session_names
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.checkpoint import stocked


def test_sessions_are_named_with_the_step_of_their_newest(tmp_path: Path) -> None:
    for name in (
        "session_a_b_step_10_1700000000-2.meta.json",
        "session_a_b_step_9_1700000000-1.meta.json",
        "session_c_step_1_1700000000-1.meta.json",
        "session_c_step_1_1700000000-1.pkl",
        "session_d_step_1_1700000000-1.pkl",
        "best.meta.json",
        ".c.lock",
    ):
        (tmp_path / name).touch()

    assert session_names(str(tmp_path)) == {"a_b": "step 10", "c": "step 1"}
    assert session_names(f"file://{tmp_path}") == session_names(str(tmp_path))


def test_checkpoints_are_what_has_a_meta(tmp_path: Path) -> None:
    (tmp_path / "best.meta.json").touch()
    (tmp_path / "alone.pkl").touch()

    assert checkpoint_paths(str(tmp_path)) == [str(tmp_path / "best.pkl")]


def test_a_folder_that_is_not_there_completes_nothing(tmp_path: Path) -> None:
    assert session_names(str(tmp_path / "none")) == {}
    assert checkpoint_paths(str(tmp_path / "none")) == []


def test_sessions_in_a_database_are_found_by_a_query_and_a_server_is_not_asked(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/runs.db")
    stocked.line(store, "night", 2)
    stocked.save(store, "alpha", 1, status="failed")

    assert session_names(f"sqlite:///{tmp_path}/runs.db") == {"alpha": "failed", "night": "running"}
    assert session_names(f"sqlite:///{tmp_path}/none.db") == {}
    assert session_names("redis://127.0.0.1:1/0") == {}
