"""The witness: who puts older checkpoints back is found out; who goes back on purpose is not bothered."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import witness
from graflow_ckpt.checkpoint.keys import local_key_path
from graflow_ckpt.checkpoint.witness import At, check, deleted, saw, went_back
from graflow_ckpt.core.errors import RolledBack
from graflow_ckpt.core.protocols import Line
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return LocalStore(tmp_path / "checkpoints")


def own(sequence: int, session: str = "s") -> str:
    return f"anywhere/session_{session}_step_1_17-{sequence}.pkl"


def tell(store: LocalStore, at: At, session: str = "s", *, passed: bool = False) -> None:
    check(store, session, own(at[1]), at, passed=passed)


def test_an_older_cut_than_was_seen_is_refused_with_both_and_the_way_on(store: LocalStore) -> None:
    saw(store, "s", own(7), (2, 7))

    for at in ((2, 6), (1, 9)):
        with pytest.raises(RolledBack) as caught:
            tell(store, at)
        assert (caught.value.seen, caught.value.found) == ((2, 7), at)
        assert f"resume {own(at[1])} --rewind" in caught.value.hint
    for newer in ((2, 7), (2, 8), (3, 1)):
        tell(store, newer)


def test_sessions_and_stores_are_told_apart(store: LocalStore, tmp_path: Path) -> None:
    saw(store, "s", own(7), (2, 7))

    tell(store, (1, 1), "t")
    tell(LocalStore(tmp_path / "other"), (1, 1))


def test_who_went_back_or_deleted_on_purpose_is_not_refused(store: LocalStore) -> None:
    saw(store, "s", own(7), (2, 7))
    went_back(store, "s", (1, 3))
    tell(store, (1, 3))
    with pytest.raises(RolledBack):
        tell(store, (1, 2))

    deleted(store, "s", (1, 2))  # an older one: nothing to forget
    with pytest.raises(RolledBack):
        tell(store, (1, 2))
    deleted(store, "s", (1, 3))
    tell(store, (1, 2))


def test_what_was_given_a_name_by_hand_may_be_written_over(store: LocalStore) -> None:
    saw(store, "s", "anywhere/best.pkl", (2, 9))
    saw(store, "s", own(9, "t"), (2, 9))

    tell(store, (1, 1))


def test_damage_that_is_there_is_a_reason_to_go_back_and_it_is_said(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    saw(store, "s", own(7), (2, 7))

    with caplog.at_level(logging.WARNING):
        tell(store, (2, 6), passed=True)

    assert "had come to cut 7 (epoch 2)" in caplog.text


def test_what_was_only_accepted_may_be_lost_and_it_is_said(
    store: LocalStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "shared", True, raising=False)
    saw(store, "s", own(7), (2, 7))
    store.synced = False

    with caplog.at_level(logging.WARNING):
        tell(store, (2, 6))

    assert "It goes on from there" in caplog.text


def test_who_went_back_on_another_machine_has_left_a_line(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saw(store, "s", own(7), (2, 7))
    monkeypatch.setattr(store, "lines", lambda session: (Line(3, 4),))
    with pytest.raises(RolledBack):  # of a folder of one user's alone; there is no other machine
        tell(store, (1, 4))

    monkeypatch.setattr(store, "shared", True, raising=False)
    tell(store, (1, 4))
    monkeypatch.setattr(store, "lines", lambda session: (Line(2, 4), Line(3, 7)))
    with pytest.raises(RolledBack):
        tell(store, (1, 4))


def test_memory_ends_with_the_process_and_has_no_witness(store: LocalStore) -> None:
    memory = MemoryStore("memory://witness")
    saw(memory, "s", own(7), (2, 7))

    check(memory, "s", own(1), (1, 1), passed=False)
    assert not local_key_path().with_name("seen").exists()


def test_a_torn_record_a_short_file_and_no_file_prove_nothing(store: LocalStore) -> None:
    tell(store, (1, 1))
    saw(store, "s", own(7), (2, 7))
    file = local_key_path().with_name("seen")
    assert (file.stat().st_mode & 0o777, file.stat().st_size <= witness.SLOTS * 64) == (0o600, True)

    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1  # in the only record that is there
    file.write_bytes(raw)
    tell(store, (1, 1))
    file.write_bytes(b"x")
    tell(store, (1, 1))


def test_a_home_that_cannot_be_written_keeps_nobody_from_saving(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    saw(store, "s", own(7), (2, 7))

    tell(store, (1, 1))


def test_the_file_does_not_grow_with_the_sessions(store: LocalStore) -> None:
    for number in range(50):
        saw(store, f"s{number}", own(7, f"s{number}"), (2, 7))

    assert os.path.getsize(local_key_path().with_name("seen")) <= witness.SLOTS * 64
