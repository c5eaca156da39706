"""A few random histories for each run, and that their judges see what would be wrong.

Of two workers on every store; a thousand by `make histories`. Of a session in Redis whose server goes back; a
thousand by `make failovers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from graflow_ckpt.core.protocols import Lease, PartWriter
from graflow_ckpt.sessions.redis import session as sessions
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.crash import failovers
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


# --- servers that go back ----------------------------------------------------------------

BROKEN = {  # what is broken, how, and the seed to begin with: one history in tens knows of it, or in hundreds
    "a request follows anything": (
        "if not before or find(before, prev, 1, true) ~= 1 then",
        "if not before then",
        205,
    ),
    "what was read may be gone": ("if (version or '0') ~= sub(base, 2) then", "if false then", 40),
    "a request from outside follows anything": ("if (last or '') ~= prev then return {'lost'} end", "", 32),
}


def test_however_servers_go_back_a_session_is_of_one_history() -> None:
    found = failovers.run(range(1, 1 + max(10, settings().max_examples // 5)))

    assert found.wrong == []
    assert found.counts["failover replica"] > 0
    assert found.counts["failover snapshot"] > 0
    assert found.counts["lost"] > 0


@pytest.mark.parametrize("name", BROKEN)
def test_two_histories_in_one_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, first = BROKEN[name]
    assert sessions.STEP.count(old) == 1, "it is to be broken in one place"
    monkeypatch.setattr(sessions, "STEP", sessions.STEP.replace(old, new))

    found = failovers.run(range(first, first + 200), until=lambda found: bool(found.wrong))

    assert found.wrong
