"""What SQLite and its driver complain of, in our words."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.sqlite import SqliteStore


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**200])
def test_a_number_that_no_column_holds_is_refused_by_name(tmp_path: Path, number: int) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    lease = store.acquire("s")

    with pytest.raises(CheckpointError, match=r"runs\.db: a number is out of the range of its column"):
        store.journal(lease, number)
    assert list(store.segments("s")) == []
