"""Pruning that is killed anywhere: what was to stay loads, and the next pass comes to the same end."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, KeepLast
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from tests.object_servers import CREDENTIALS, ObjectServer
from tests.postgres_servers import PASSWORD, PostgresServer
from tests.servers import Server
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import left, line

pytestmark = pytest.mark.crash

SESSIONS = [f"s{number}" for number in range(5)]
EACH = 40
DEATHS = 5
VICTIM = """
import sys
from graflow_ckpt import CheckpointManager, KeepLast
CheckpointManager.prune(dry_run=True, store=sys.argv[1])  # everything is loaded
print("now", flush=True)
CheckpointManager.prune(KeepLast(2), store=sys.argv[1])
"""


@pytest.fixture(params=["local", "sqlite", "redis", "objects", "postgres"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CheckpointStore]:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
    if request.param in ("local", "sqlite"):
        folder = tmp_path / "checkpoints"
        yield open_store(folder if request.param == "local" else f"sqlite:///{folder}.db")
        return
    if request.param == "postgres":
        monkeypatch.setenv("PGUSER", PostgresServer.user)  # its folder shows neither
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        yield open_store(request.getfixturevalue("postgres_url"))
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with Server() if request.param == "redis" else ObjectServer() as server:
        url = server.url
        if request.param == "objects":  # as in production: what leads to the server is in the environment
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.host}:{server.port}")
            url = url.partition("?")[0]
        yield open_store(url)


def test_a_pass_that_is_killed_anywhere_loses_nothing_that_stays(store: CheckpointStore) -> None:
    for session in SESSIONS:
        line(store, session, EACH)
    rest = sorted(f"{session}{number}" for session in SESSIONS for number in (EACH - 1, EACH))
    chance, counts, longest = random.Random(11), [len(left(store))], 0.08

    while len(counts) <= DEATHS or counts[-1] == counts[0]:
        with subprocess.Popen(
            [sys.executable, "-c", VICTIM, store.folder], stdout=subprocess.PIPE, text=True
        ) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "now\n"
            time.sleep(chance.uniform(0.01, longest))  # the chance is the test
            victim.kill()
        found = left(store)
        longest *= 2 if len(found) == counts[-1] else 1  # where little is done in that time
        counts.append(len(found))
        assert set(rest) <= set(found)
        for session in SESSIONS:
            path = CheckpointManager.get_latest(session, store=store.folder)
            assert CheckpointManager.verify(path, store=store.folder).sequence == EACH

    assert counts == sorted(counts, reverse=True)
    done = CheckpointManager.prune(KeepLast(2), store=store.folder)
    assert not done.failed
    assert left(store) == rest


def test_nothing_is_left_of_what_was_being_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner of the session clears away what a dead one has left half deleted."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
    store = open_store(tmp_path)
    line(store, "s", 3)
    target = tmp_path / "session_s_step_1_17-1"
    # as a kill leaves it after the first of the renames
    target.with_suffix(".meta.json").rename(tmp_path / "session_s_step_1_17-1.deleted.meta.json.tmp")

    assert [cut.sequence for cut in CheckpointManager.prune(KeepLast(1), store=str(tmp_path)).cuts] == [2]
    store.acquire("s").release()

    names = {path.name.partition(".")[0] for path in tmp_path.iterdir() if path.name.startswith("session_")}
    assert names == {"session_s_step_3_17-3"}
