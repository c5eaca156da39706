"""Locks between open files; what happens between processes is in tests/crash/test_ownership.py."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from graflow_ckpt.stores.flock import Flock, held, is_held


def test_two_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")

    assert first.try_take()
    assert not second.try_take()
    assert not second.take_within(0.01)
    first.drop()
    assert second.take_within(0)
    first.close()
    second.close()


def test_closing_lets_go_and_can_be_repeated(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")
    first.take()

    first.close()
    first.close()
    first.drop()

    assert second.is_free()
    second.close()


def test_asking_does_not_take(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")

    assert first.is_free()
    assert second.try_take()
    assert not first.is_free()
    first.close()
    second.close()


def test_the_file_of_a_held_block_goes_with_it(tmp_path: Path) -> None:
    path = f"{tmp_path}/x"

    with held(path) as ours:
        assert ours
        assert is_held(path)
        with held(path, wait=False) as also:
            assert not also
        assert is_held(path)

    assert not is_held(path)
    assert list(tmp_path.iterdir()) == []


def test_who_waited_for_a_file_that_was_taken_away_locks_the_new_one(tmp_path: Path) -> None:
    """Eight threads, each with locks of its own, count without losing one."""
    counter = {"n": 0, "inside": 0, "most": 0}

    def count() -> None:
        for _ in range(100):
            with held(f"{tmp_path}/x"):
                counter["inside"] += 1
                counter["most"] = max(counter["most"], counter["inside"])
                counter["n"] += 1
                counter["inside"] -= 1

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counter == {"n": 800, "inside": 0, "most": 1}
    assert list(tmp_path.iterdir()) == []


def test_the_block_may_raise(tmp_path: Path) -> None:
    with pytest.raises(KeyError), held(f"{tmp_path}/x"):
        raise KeyError

    assert list(tmp_path.iterdir()) == []
