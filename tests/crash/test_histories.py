"""A few random histories of two workers on every store for each run; a thousand by `make histories`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.core.protocols import Lease, PartWriter
from graflow_ckpt.stores.sqlite import SqliteStore
from tests.crash.histories import PLACES, Opener, run

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("place", PLACES)
def test_two_workers_at_random_end_in_one_line_of_epochs(place: str, tmp_path: Path) -> None:
    with PLACES[place](tmp_path) as (opener, step):
        found = run(opener, step, range(1, 5))

    assert found.wrong == []
    assert found.results["done"] >= 12  # of the first owners alone
    assert found.results["owner"] >= 4


class Unfenced(SqliteStore):
    """Asks nobody before it saves."""

    def put(
        self, path: str, parts: Sequence[tuple[str, PartWriter]], *, lease: Lease | None, stage: str
    ) -> None:
        super().put(path, parts, lease=None, stage=stage)


class Generous(SqliteStore):
    """Gives the session to everybody who asks."""

    def acquire(self, session: str, *, take_over: bool = False):  # type: ignore[no-untyped-def]
        lease = super().acquire(session, take_over=True)
        lease.epoch = 1
        return lease


@pytest.mark.parametrize(
    ("kind", "words"), [(Unfenced, "went through under"), (Generous, "epoch 1 was given out")]
)
def test_a_store_that_lets_two_write_is_convicted(kind: type, words: str, tmp_path: Path) -> None:
    opener: Opener = partial(kind, tmp_path / "store")

    found = run(opener, None, range(1, 40), until=lambda found: any(words in wrong for wrong in found.wrong))

    assert any(words in wrong for wrong in found.wrong), found
