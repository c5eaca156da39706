"""Tidying: what goes after a save, when a pass over the store is worth it. A save never fails for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.checkpoint.retention import (
    DEFAULT,
    BestOf,
    DeleteOnSuccess,
    KeepFor,
    KeepLast,
    KeepWithin,
    OfAll,
)
from graflow_ckpt.engine import home as tidying
from graflow_ckpt.engine.home import Tidier
from graflow_ckpt.stores.local import LocalStore
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import left, line, save


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)


class Counting(LocalStore):
    """Counts how often it was listed as a whole."""

    passes = 0

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        self.passes += session is None and pattern is None
        return super().list(session, pattern)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(tmp_path)


def tidier(store: LocalStore, *, alone: bool = True) -> Tidier:
    return Tidier(store, "s", lambda: trios.RING, emit=lambda kind, **facts: None, alone=alone)


def test_with_each_save_what_is_too_much_goes(store: Counting) -> None:
    one = tidier(store)
    for number in range(1, 6):
        one.after(save(store, "s", number), KeepLast(2))
        assert left(store) == [f"s{n}" for n in (number - 1, number) if n]


def test_nothing_is_looked_at_while_nothing_is_too_much(store: Counting) -> None:
    one = tidier(store)
    for number in range(1, 11):
        one.after(save(store, "s", number), DEFAULT)
    assert store.passes == 0

    one.after(save(store, "s", 11), DEFAULT)
    assert (store.passes, len(left(store))) == (1, 10)


def test_what_was_asked_for_stays_unless_the_retention_is_of_all(store: Counting) -> None:
    one = tidier(store)
    for number in range(1, 5):
        one.after(save(store, "s", number, cause="request"), KeepLast(1))
    assert len(left(store)) == 4

    one.after(save(store, "s", 5), OfAll(KeepLast(1)))
    assert left(store) == ["s5"]


def test_what_earlier_processes_have_left_goes_too(store: Counting) -> None:
    line(store, "s", 5, days=9)

    tidier(store).after(save(store, "s", 6), DEFAULT)

    assert left(store) == ["s6"]


def test_the_best_ones_stay_among_those_of_a_run(store: Counting) -> None:
    one = tidier(store)
    for number, loss in enumerate([3.0, 1.0, 2.0, 4.0], 1):
        one.after(save(store, "s", number, user={"loss": loss}), KeepLast(1) | BestOf("loss", 1, "min"))

    assert left(store) == ["s2", "s4"]


def test_a_session_that_was_forked_meanwhile_keeps_what_it_was_forked_from(store: Counting) -> None:
    one = tidier(store)
    first = save(store, "s", 1)
    one.after(first, KeepLast(2))
    save(store, "other", 1, parent=first.checkpoint_id)
    for number in range(2, 6):
        one.after(save(store, "s", number), KeepLast(2))

    assert left(store) == ["other1", "s1", "s4", "s5"]


def test_the_owner_of_the_session_is_not_kept_from_tidying_it(store: Counting) -> None:
    lease = store.acquire("s")
    try:
        line(store, "s", 3)
        tidier(store).after(save(store, "s", 4), KeepLast(1))
    finally:
        lease.release()

    assert left(store) == ["s4"]


def test_other_sessions_are_left_alone_unless_they_count(store: Counting) -> None:
    line(store, "a", 4)
    line(store, "b", 4, workflow="v")

    tidier(store).after(save(store, "s", 1), KeepLast(2))
    assert len(left(store)) == 9
    tidier(store).after(save(store, "s", 2), KeepLast(3, per="workflow"))

    assert left(store) == ["a4", *(f"b{n}" for n in (2, 3, 4)), "s1", "s2"]


def test_of_another_session_nothing_goes_that_is_needed(store: Counting) -> None:
    line(store, "a", 2, days=1)
    save(store, "p", 1, days=2, status="paused")

    tidier(store).after(save(store, "s", 1), KeepWithin(kb=0.001))

    assert left(store) == ["a2", "p1", "s1"]


def test_in_a_large_store_saves_have_to_earn_a_pass(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "EARNED", 1)
    line(store, "other", 6)
    one = tidier(store)
    counts = []
    for number in range(1, 19):
        one.after(save(store, "s", number), KeepLast(1))
        counts.append(len([*Path(store.folder).glob("session_s_*.pkl")]))

    assert store.passes == 3  # the first one shows how many there are
    assert counts == [1, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3]

    one.after(save(store, "s", 19), KeepLast(1), last=True)
    assert len(left(store)) == 7


def test_large_ones_do_not_wait_for_long(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "EARNED", 0)
    monkeypatch.setattr(tidying, "BYTES", 1)
    line(store, "other", 6)
    one = tidier(store)
    for number in range(1, 5):
        one.after(save(store, "s", number), KeepLast(1))

    assert len(left(store)) == 7


def test_who_shares_a_session_counts_what_others_have_saved(store: Counting) -> None:
    mine, yours = tidier(store, alone=False), tidier(store, alone=False)
    for number in range(1, 7):
        (mine if number % 2 else yours).after(save(store, "s", number), KeepLast(2))

    assert left(store) == ["s5", "s6"]


def test_only_what_is_in_the_store_of_the_session_counts(store: Counting, tmp_path: Path) -> None:
    one = tidier(store)
    one.after(save(store, "s", 1), OfAll(KeepLast(1)))
    elsewhere = save(LocalStore(tmp_path / "other"), "s", 2)

    assert not one.after(elsewhere, OfAll(KeepLast(1)))

    assert left(store) == ["s1"]
    assert Path(elsewhere.path).exists()


def test_when_nothing_is_left_that_is_told(store: Counting) -> None:
    one = tidier(store)
    assert not one.after(save(store, "s", 1), DeleteOnSuccess())

    assert one.after(save(store, "s", 2, status="completed", cause="end"), DeleteOnSuccess(), last=True)
    assert left(store) == []


def test_a_save_never_fails_for_what_is_not_deleted(
    store: Counting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = tidier(store)
    line(store, "s", 3, days=9)
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(Counting, "delete", _refuse)
        one.after(save(store, "s", 4), KeepFor(days=7))
        broken.setattr(Counting, "list", _refuse)
        one.after(save(store, "s", 5), KeepLast(1))
    assert len(left(store)) == 5
    assert "checkpoints stay" in caplog.text

    one.after(save(store, "s", 6), KeepLast(1))
    assert left(store) == ["s6"]


def _refuse(*args: Any) -> Any:
    raise PermissionError("read-only")
