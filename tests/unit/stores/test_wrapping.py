"""A wrapper that does nothing is the store that it wraps, under another address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.testing import ListingContract, NamesContract, Opener, TrioContract
from graflow_ckpt.testing.trios import put, read
from tests.unit.stores.wrappers import Other, Plain


class TestWrapped(TrioContract, NamesContract, ListingContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: Plain(Other(LocalStore(f"file://{tmp_path}/checkpoints")), "x")


def test_a_relative_folder_is_named_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Plain(LocalStore("runs"))

    path = put(store, "best", "one")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert path == f"plain+file://{tmp_path}/runs/best"
    assert [found for found, _ in store.list()] == [f"{path}.pkl"]
    assert read(store, path).stage == "one"


def test_a_path_that_names_no_store_is_written_through_the_wrapper(tmp_path: Path) -> None:
    store = Plain(LocalStore(tmp_path / "runs"))

    assert store.takes(f"{tmp_path}/mine.pkl") == f"plain+file://{tmp_path}/mine.pkl"
    assert store.takes("mine.pkl") == f"plain+file://{os.getcwd()}/mine.pkl"
    assert Plain(MemoryStore("memory://wrapping")).takes("mine.pkl") is None


def test_the_path_of_what_is_wrapped_is_not_a_path_of_the_wrapper(tmp_path: Path) -> None:
    store = Plain(LocalStore(tmp_path / "runs"))
    foreign = f"file://{tmp_path}/runs/best"

    assert store.takes(foreign) is None
    with pytest.raises(CheckpointError, match="is not in plain"):
        store.meta(foreign)
