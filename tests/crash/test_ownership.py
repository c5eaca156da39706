"""Who owns a session, decided between real processes that die, stop, fork and race."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from graflow_ckpt.core.errors import CheckpointNotFound, SessionBusy
from graflow_ckpt.links.processes import end
from graflow_ckpt.stores.files.store import LocalStore
from tests.crash.victims import own_path
from tests.trios import owning

pytestmark = pytest.mark.crash

ROUNDS = 50


@contextmanager
def victim(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.victims", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(pipe(process.stdout).readline())
    return said


def ask(process: subprocess.Popen[str], what: str) -> dict[str, Any]:
    pipe(process.stdin).write(what + "\n")
    pipe(process.stdin).flush()
    return hear(process)


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    with victim("owner", str(tmp_path)) as process:
        pid = hear(process)["pid"]

        with pytest.raises(SessionBusy) as busy:
            LocalStore(tmp_path).acquire("s")

    assert busy.value.owner.pid == pid
    assert f"process {pid}" in str(busy.value)
    assert "tests.crash.victims" in str(busy.value)


def test_a_killed_owner_is_taken_over_at_once(tmp_path: Path) -> None:
    with victim("owner", str(tmp_path)) as process:
        first = hear(process)
        process.kill()
        process.wait()

        lease = LocalStore(tmp_path).acquire("s")

    assert lease.epoch == first["epoch"] + 1
    assert lease.taken_from is not None
    assert lease.taken_from.pid == first["pid"]
    lease.release()


def test_a_stopped_owner_keeps_its_session_until_it_is_ended(tmp_path: Path) -> None:
    with victim("owner", str(tmp_path)) as process:
        hear(process)
        assert ask(process, "put") == {"done": "put"}
        process.send_signal(signal.SIGSTOP)
        store = LocalStore(tmp_path)

        with pytest.raises(SessionBusy):
            store.acquire("s")
        owner = store.owner("s")
        assert owner is not None
        assert end(owner, 10)

        with owning(store) as lease:
            assert lease.epoch == 2
        assert process.wait() == -signal.SIGTERM


def test_an_owner_whose_lock_file_was_removed_while_it_was_stopped_writes_nothing(tmp_path: Path) -> None:
    with victim("owner", str(tmp_path)) as process:
        hear(process)
        assert ask(process, "append") == {"done": "append"}
        process.send_signal(signal.SIGSTOP)
        (tmp_path / ".s.lock").unlink()
        store = LocalStore(tmp_path)
        lease = store.acquire("s")
        process.send_signal(signal.SIGCONT)

        assert ask(process, "put") == {"refused": "Fenced"}
        assert ask(process, "append") == {"refused": "Fenced"}
        with pytest.raises(CheckpointNotFound):
            store.meta(own_path(str(tmp_path), 1))
        assert [raw.rstrip(b"\0") for _, _, raw in store.segments("s")] == [b"frame"]
        assert not list(tmp_path.glob("*.tmp"))
        lease.check()
        lease.release()


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_session(tmp_path: Path) -> None:
    with victim("parent", str(tmp_path)) as process:
        family = hear(process)
        try:
            with pytest.raises(SessionBusy):
                LocalStore(tmp_path).acquire("s")
            process.kill()
            process.wait()

            lease = LocalStore(tmp_path).acquire("s")

            os.kill(family["child"], 0)  # it is still there
            assert lease.epoch == family["epoch"] + 1
            lease.release()
        finally:
            os.kill(family["child"], signal.SIGKILL)


def test_of_two_who_race_for_a_dead_session_exactly_one_wins(tmp_path: Path) -> None:
    with victim("races", str(tmp_path), str(ROUNDS)) as process:
        rounds = [json.loads(line) for line in pipe(process.stdout)]

    assert len(rounds) == ROUNDS
    assert all(len(found["won"]) == 1 for found in rounds)
    assert all(found["taken_from_the_dead"] == [True] for found in rounds)
    assert all(found["busy_with_the_winner"] == [True] for found in rounds)
    epochs = [found["won"][0] for found in rounds]
    assert epochs == sorted(set(epochs))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".s.lock", ".s.owner"]
