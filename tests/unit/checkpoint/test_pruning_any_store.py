"""Any store, any retention: what must never go stays, whatever is combined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graflow_ckpt.checkpoint import history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.inventory import inventory
from graflow_ckpt.checkpoint.pruning import WAITS, Guard, carry_out, plan
from graflow_ckpt.checkpoint.retention import FINISHED, Cut, Retention, forked_from
from graflow_ckpt.stores.local import LocalStore
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import save
from tests.unit.checkpoint.test_retention import retentions

NOW = 2e9  # all of them are older than any period


@pytest.fixture(scope="module", autouse=True)
def _key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
        yield


cuts = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 6),
        st.sampled_from(["running", "running", "paused", "failed", "completed", "cancelled"]),
        st.sampled_from(["", "", "damaged", "fork"]),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda cut: cut[:2],
)


def stock(store: LocalStore, described: list[Any]) -> None:
    made: list[Any] = []
    for session, sequence, status, what in described:
        source = next((m for m in made if m.session_id != session), None) if what == "fork" else None
        more = {"origin": source.checkpoint_id} if source else {}
        found = save(store, session, sequence, status=status, user={"x": sequence}, **more)
        if what == "damaged":
            Path(found.path).write_bytes(b"x" * Path(found.path).stat().st_size)
        made.append(found)


def goes_on_at(store: LocalStore) -> dict[str, str]:
    """Where a resume of each session would begin: found by the code of resume, not by that of pruning."""
    found: dict[str, str] = {}
    for session in "abc":
        for path, one in history.newest(store, trios.RING, session):
            if isinstance(one, Found) and not Path(path).read_bytes().startswith(b"xxxx"):
                found[session] = path
                break
    return found


def unfinished(cuts: Sequence[Cut]) -> set[str]:
    last = {cut.session: cut for cut in sorted(cuts, key=lambda cut: cut.sequence)}
    return {session for session, cut in last.items() if cut.status not in FINISHED}


@settings(max_examples=60)
@given(cuts, retentions)
def test_what_must_never_go_stays(described: list[Any], retention: Retention) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(folder)
        stock(store, described)
        before = inventory(store)
        begin = goes_on_at(store)
        needed = {path for session, path in begin.items() if session in unfinished(before.cuts)}
        held = {cut.path for cut in before.cuts if cut.status in WAITS or cut.id in forked_from(before.cuts)}
        kept = retention.keeps(before.cuts, NOW)

        what = plan(Guard(store, before, lambda: trios.RING), retention, NOW)
        carry_out(store, what)

        there = {cut.path for cut in inventory(store).cuts}
        assert held | kept | needed <= there
        assert there == {cut.path for cut in before.cuts} - {cut.path for cut in what.cuts}
        assert goes_on_at(store).items() <= begin.items()  # no session goes back, as long as it is there
        spared = {cut.path for cut, _ in what.spared}
        assert there == kept | spared
