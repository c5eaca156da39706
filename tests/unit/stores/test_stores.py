"""Which store a URL or a path asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.local import LocalStore


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    for where in (str(tmp_path), tmp_path, f"file://{tmp_path}", f"FILE://{tmp_path}"):
        store = open_store(where)

        assert isinstance(store, LocalStore)
        assert store.url == f"file://{tmp_path}"


@pytest.mark.parametrize(
    "where", ["redis://h:1/x", "s3://bucket/x", "sqlite:///x.db", "gs://b", "postgresql://h/d"]
)
def test_a_store_that_is_to_come_says_with_which_extra(where: str) -> None:
    with pytest.raises(CheckpointError, match=r"graflow-ckpt\[\w+\].*file://") as unknown:
        open_store(where)

    assert unknown.value.store == where


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"ftp://.*file://"):
        open_store("ftp://host/x")


@pytest.mark.parametrize("where", ["", "file://"])
def test_no_place_at_all_is_not_the_root_folder(where: str) -> None:
    with pytest.raises(CheckpointError, match="no folder"):
        open_store(where)
