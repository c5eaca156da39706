"""A finished session in Redis that is run again, killed with SIGKILL at every message to and from the server:
it is the run that has ended, with its result, or the next one with its first specs. Never neither.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.resuming import is_finished
from graflow_ckpt.fleet.client import connect
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.sessions.redis.tables import read_state
from graflow_ckpt.stores.around.keys import Keyring
from tests.crash.again import opened, submitted
from tests.crash.doomed import Doomed
from tests.crash.pools import ready_pool
from tests.pools import ROOT
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.checkpoint import trios

pytestmark = pytest.mark.crash

MOST = 200  # messages: it takes fewer


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)


@pytest.fixture
def proxy(redis_url: str, redis_server: Server) -> Iterator[Proxy]:
    with Proxy(redis_server) as made:
        yield made


def dies(doomed: Doomed, proxy: Proxy, at: int, by: str, session: str, store: Path) -> int:
    """The exit status of a process that is killed at that message; 0: it has come to its end before."""
    order = {"by": by, "url": proxy.url, "session": session, "store": str(store)}
    pid = doomed.told("again", 0, **order)
    proxy.at_message(at, lambda: os.kill(pid, signal.SIGKILL))
    doomed.begins()
    status = doomed.ended()
    proxy.resume()
    assert status in (0, -signal.SIGKILL)
    return status


def seen(link: RedisLink, session: str) -> SessionState:
    """The session as it is, whole: the one that has ended, or the next with all that it begins with."""
    client: Any = link.client
    state = read_state(link, session, SealedCells(session, Keyring.load()))
    paid = {name: cell for name, (cell, _) in state.values.items()}
    if state.run == 1:
        assert is_finished(state)
        assert client.hget(f"{keys_of(session)}c", "format") == b"3"
        assert "pay.__result__" in paid
    else:
        assert (state.run, state.epoch, state.counts) == (2, 2, {"pay": 1})
        assert is_finished(state) or [spec.task_id for spec in state.pending()] == ["pay"]
        assert client.hget(f"{keys_of(session)}c", "format") == b"4"
        assert "amount" in paid
    return state


def former(session: str, store: Path) -> list[Any]:
    """The results that checkpoints keep of the first run."""
    found = CheckpointManager.list_checkpoints(session, store=str(store))
    return [ExecutionContext.resume(one.path).result() for one in found if one.cause == "end" and not one.run]


RACE = """
import sys
from graflow_ckpt.core.errors import SessionExists
from tests.crash.again import opened, submitted

by, url, session, store, amount = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
try:
    if by == "program":
        print("ran", *opened(url, session, store, int(amount)).execute())
    else:
        print("has", submitted(url, session, store, 2).session)
except SessionExists as error:
    print("told", error)
"""


def race(by: str, url: str, store: Path) -> tuple[list[str], str]:
    """What each of four processes has printed that do it at the same time, and what they said on stderr."""
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | {"text": True}
    command = [sys.executable, "-c", RACE, by, url, "s", str(store)]
    several: list[Any] = [subprocess.Popen([*command, "2"], cwd=ROOT, **pipes) for _ in range(4)]
    assert [process.stdout.readline() for process in several] == ["ready\n"] * 4
    for process in several:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60) for process in several]
    assert [process.returncode for process in several] == [0] * 4, said
    return [out.strip() for out, _ in said], "".join(err for _, err in said)


def test_of_several_submitters_at_the_same_time_one_begins_the_next_run(
    link: RedisLink, redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path / "pools", n=1):
        submitted(redis_url, "s", str(tmp_path), 1).result(30)

    said, notes = race("submitter", redis_url, tmp_path)

    assert seen(link, "s").run == 2
    assert notes.count("session s was finished and begins run 2") == 1
    assert {line.split()[0] for line in said} <= {"has", "told"}
    with ready_pool(redis_url, tmp_path / "pools", n=1):
        assert connect(redis_url).session("s").result(30) == ("s#2/pay/0", 2)


def test_of_several_programs_at_the_same_time_each_run_has_its_own_number(
    redis_url: str, tmp_path: Path
) -> None:
    opened(redis_url, "s", str(tmp_path), 1).execute()

    said, _ = race("program", redis_url, tmp_path)

    keys = {line.split()[1] for line in said if line.startswith("ran")}  # of one run, or one after the other
    assert keys == {f"s#{number}/pay/0" for number in range(2, 2 + len(keys))}
    assert all(line.startswith(("ran", "told Session s was run again or changed")) for line in said)


def test_a_program_that_is_killed_has_begun_the_next_run_or_not(
    link: RedisLink, proxy: Proxy, doomed: Doomed, tmp_path: Path
) -> None:
    url, runs = proxy.server.url, []
    for at in count(1):
        session = f"s{at}"
        assert opened(url, session, str(tmp_path), 1).execute() == (f"{session}/pay/0", 1)

        status = dies(doomed, proxy, at, "program", session, tmp_path)

        state = seen(link, session)
        runs.append((state.run, state.status))
        if state.run == 2:
            assert (f"{session}/pay/0", 1) in former(session, tmp_path)
        if not is_finished(state) or state.run == 1:  # the same command once more
            assert opened(url, session, str(tmp_path), 2).execute() == (f"{session}#2/pay/0", 2)
        if status == 0:
            break

    assert runs[0] == (1, "completed")
    assert runs[-1] == (2, "completed")
    assert (2, "running") in runs
    assert runs == sorted(runs, key=lambda run: run[0])


def test_a_submitter_that_is_killed_has_begun_the_next_run_or_not_and_workers_find_it(
    link: RedisLink, proxy: Proxy, doomed: Doomed, tmp_path: Path
) -> None:
    url, store = proxy.server.url, tmp_path / "kept"
    sessions = [f"s{at}" for at in range(1, MOST)]
    with ready_pool(url, tmp_path / "pools", n=2):
        for session in sessions:
            submitted(url, session, str(store), 1)
        for session in sessions:
            assert connect(url).session(session).result(60)[1] == 1
    runs = {}
    for at, session in enumerate(sessions, 1):
        status = dies(doomed, proxy, at, "submitter", session, store)
        runs[session] = seen(link, session).run
        if status == 0:
            break

    assert status == 0
    assert runs["s1"] == 1
    assert list(runs.values()) == sorted(runs.values())
    with ready_pool(
        url, tmp_path / "pools", n=2, lease=1.0
    ):  # a steward sees to those that nobody was asked for
        for session, run in runs.items():
            assert connect(url).session(session).result(30) == (
                (f"{session}/pay/0", 1) if run == 1 else (f"{session}#2/pay/0", 2)
            )
        again = [session for session, run in runs.items() if run == 1]
        for session in again:
            submitted(url, session, str(store), 2)
        for session in again:
            assert connect(url).session(session).result(30) == (f"{session}#2/pay/0", 2)
