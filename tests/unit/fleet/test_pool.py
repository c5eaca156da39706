"""What a pool refuses before it starts, and what it says about its server. How it lives: tests/crash."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from graflow_ckpt.core.errors import BadAddress, GraflowError, GraphError
from graflow_ckpt.fleet import pool as pools
from graflow_ckpt.fleet.board import Order, RunningSlice
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.pool import Estate, PoolSettings, run
from graflow_ckpt.fleet.worker import rq_name
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.redis.tables import frozen
from graflow_ckpt.stores.around.keys import Keyring
from tests.servers import Server
from tests.stretch import until
from tests.unit.fleet.played import Player, at_work, bag, tokens


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever comes so far is content; logging is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(pools.Pool, "run", lambda self: 0)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_a_pool_whose_settings_are_sound_starts(redis_url: str, keyring: Keyring) -> None:
    assert run(PoolSettings(redis_url)) == 0


def test_a_child_that_cannot_be_forked_is_tried_again_and_the_pool_works_on(
    redis_url: str, keyring: Keyring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    pool = pools.Pool(PoolSettings(redis_url, n=2), keyring)

    pool._start()
    pool._start()  # none of them is due yet

    assert [seat.pid for seat in pool._seats] == [0, 0, 0]
    assert all(seat.not_before > time.monotonic() for seat in pool._seats)
    assert [record.getMessage()[:8] for record in caplog.records] == ["worker-1", "worker-2", "steward "]


def test_the_parent_of_a_killed_child_that_cannot_end_waits_for_its_end(
    redis_url: str, keyring: Keyring
) -> None:
    """It may be within the kernel, at a disk that does not answer: SIGCHLD tells when it is gone."""
    pool = pools.Pool(PoolSettings(redis_url, n=1), keyring)
    for seat in pool._seats:
        seat.pid = os.getpid()
    (stuck, _) = pool._seats
    stuck.told, stuck.until = Order.DRAIN, time.monotonic() - 1

    due = pool._patience()
    stuck.killed = True
    over = pool._patience()

    assert (due, over) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"queues": ("with space",)}, GraphError, "with space"),
        ({"url": "http://somewhere"}, BadAddress, "redis://"),
        ({"url": "redis+cluster://127.0.0.1:7000"}, BadAddress, "Redis Cluster"),
        ({"preload": ("no_such_module_here",)}, GraflowError, "no_such_module_here"),
        ({"n": 0}, ValueError, "a worker"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(
    redis_url: str, keyring: Keyring, changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(PoolSettings(**{"url": redis_url, **changed}))


def test_what_is_wrong_with_the_server_is_said_at_the_start(
    own_redis: Callable[..., Server], keyring: Keyring, capsys: pytest.CaptureFixture[str]
) -> None:
    server = own_redis({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})

    run(PoolSettings(server.url))

    said = capsys.readouterr().err
    assert "maxmemory-policy allkeys-lru" in said
    assert "appendonly" in said


def test_modules_are_loaded_before_there_are_children(
    redis_url: str, keyring: Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_once.py").write_text("import sys\nsys.loaded_once = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loaded_once", raising=False)  # there is a test for each kind of server

    run(PoolSettings(redis_url, preload=("loaded_once",)))

    assert sys.__dict__.pop("loaded_once")


def test_a_version_of_rq_whose_workers_never_start_is_refused_by_name(
    redis_url: str, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "VERSION", "2.8.0")

    with pytest.raises(GraflowError, match=r"RQ 2\.8\.0 is too old.*rq>=2\.9"):
        run(PoolSettings(redis_url))


# --- a worker ---------------------------------------------------------------------------


def test_a_worker_is_named_by_its_machine_and_process() -> None:
    assert rq_name(77).startswith("graflow-")
    assert rq_name(77).endswith("-77")


# --- what its dead have left ------------------------------------------------------------


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "AGAIN", 0.0)


@pytest.fixture
def estate(redis_url: str) -> Estate:
    return Estate(redis_url, redis_url, ["default"])


def test_a_debt_is_settled_at_once(client: Client, estate: Estate) -> None:
    handle, player = at_work(client)

    estate.owes(RunningSlice("s", player.token), "it was killed", crashed=True)
    estate.settle()

    assert handle.status().ready == 1
    assert handle.pending()[0]["crashes"] == 1
    assert estate.patience > 1


def test_a_server_that_is_away_is_asked_again_later(
    keyring: Keyring, own_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    client = Client(open_link(server.url), keyring=keyring)
    handle, player = at_work(client)
    estate = Estate(server.url, server.url, ["default"])
    server.kill()
    estate.owes(RunningSlice("s", player.token), "it was killed", crashed=True)
    began = time.monotonic()

    for _ in range(3):
        estate.settle()
    away = time.monotonic() - began
    server.start()
    estate.settle()

    assert away < 2
    assert caplog.text.count("waits") == 1
    assert handle.status().ready == 1


def test_what_gave_up_while_the_server_took_no_writes_is_no_crash_once_it_does(
    keyring: Keyring, own_redis: Any
) -> None:
    server: Server = own_redis()
    client = Client(open_link(server.url), keyring=keyring)
    handle, player = at_work(client)
    estate = Estate(server.url, server.url, ["default"])
    server.ask("REPLICAOF", "127.0.0.1", 1)  # in the middle of a failover
    estate.owes(RunningSlice("s", player.token), "it was stopped", crashed=False)
    estate.settle()
    server.ask("REPLICAOF", "NO", "ONE")

    until(lambda: estate.settle() or handle.status().ready == 1)

    assert handle.pending()[0]["crashes"] == 0
    client.close()


def test_a_session_that_is_frozen_does_not_hold_up_the_others(client: Client, estate: Estate) -> None:
    handles = [bag(client, name, tasks=1) for name in ("a", "b")]
    players = [Player(client, name) for name in ("a", "b")]
    for player in players:
        player.claim()
        estate.owes(RunningSlice(player.session.id, player.token), "it was killed", crashed=True)

    with frozen(client.link, "a"):
        for _ in range(2):
            estate.settle()
        during = [handle.status().ready for handle in handles]
    estate.settle()

    assert during == [0, 1]
    assert [handle.status().ready for handle in handles] == [1, 1]


def test_a_session_that_is_gone_owes_nothing(client: Client, estate: Estate) -> None:

    estate.owes(RunningSlice("nobody", "e1t1"), "it was killed", crashed=True)
    estate.settle()

    assert estate.patience > 1


def test_a_dead_worker_is_struck_from_rq_s_list(client: Client, estate: Estate) -> None:
    connection: Any = client.carrier.connection
    worker = SimpleWorker(["graflow-default"], "ghost", connection=connection, serializer=JSONSerializer)
    worker.register_birth()

    estate.leaves("ghost", listed=True)
    estate.leaves("never-seen", listed=True)
    estate.settle()

    assert connection.smembers("rq:workers") == set()


def test_what_the_dead_had_taken_from_rq_is_posted_again(client: Client, estate: Estate) -> None:
    handle = bag(client, "s", tasks=1)
    queue = client.carrier.queue("default")
    (name,) = queue.job_ids
    client.carrier.connection.lmove(queue.key, queue.intermediate_queue_key)

    estate.leaves("ghost", listed=False)
    estate.settle()

    assert queue.job_ids == [name]
    assert client.carrier.taken_by_nobody("default") == []
    assert len(tokens(handle)) == 1


def test_what_somebody_has_begun_on_is_not(client: Client, estate: Estate) -> None:
    bag(client, "s", tasks=1)
    queue = client.carrier.queue("default")
    (name,) = queue.job_ids
    Player(client, "s")
    client.carrier.connection.lpush(queue.intermediate_queue_key, name)

    estate.leaves("ghost", listed=False)
    estate.settle()

    assert queue.job_ids == []


# --- the log ----------------------------------------------------------------------------


log = logging.getLogger("graflow_ckpt.fleet")


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def as_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (line,) = said(capsys)
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_fact_is_one_json_object_with_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    pools.begin_log("json", "worker-1")

    log.warning(
        "task %s failed", "a", extra={"session": "s", "task": "a", "step": 3, "attempt": 2, "token": "e1t1"}
    )

    found = as_json(capsys)
    assert found.items() >= {
        "level": "warning", "logger": "graflow_ckpt.fleet", "message": "task a failed", "session": "s",
        "task": "a", "step": 3, "attempt": 2, "token": "e1t1", "worker": "worker-1",
    }.items()  # fmt: skip
    assert found["time"].endswith("Z")


def test_text_says_the_same_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    pools.begin_log("text", "worker-1")

    log.info("task %s failed", "a", extra={"session": "s1", "task": "a", "step": 3})

    (line,) = said(capsys)
    assert "INFO    worker-1: task a failed" in line
    assert line.endswith("session=s1 step=3")  # the task has been named


def test_several_lines_of_one_fact_stay_together(capsys: pytest.CaptureFixture[str]) -> None:
    pools.begin_log("json", "pool")

    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it failed")

    found = as_json(capsys)
    assert "ValueError: two\nlines" in found["error"]


@pytest.mark.parametrize("manner", ["text", "json"])
def test_a_password_is_in_no_line(capsys: pytest.CaptureFixture[str], manner: pools.Manner) -> None:
    pools.begin_log(manner, "pool", pools.secrets_of("redis://user:s%40cret-word@host:6379/0", None, ""))

    try:
        raise ValueError("cannot connect to redis://user:s%40cret-word@host")
    except ValueError:
        log.exception("also as %s", "s@cret-word")

    text = "\n".join(said(capsys))
    assert "cannot connect" in text
    assert "cret-word" not in text


def test_passwords_are_known_by_all_kinds_of_addresses() -> None:
    found = pools.secrets_of(
        "redis+sentinel://:first@one:26379,two:26379/main/0?sentinel_password=second", "unix://:third@/socket"
    )

    assert {"first", "second", "third"} <= set(found)


def test_rq_says_only_what_it_warns_of(capsys: pytest.CaptureFixture[str]) -> None:
    pools.begin_log("text", "worker-1")

    logging.getLogger("rq.worker").info("*** Listening on default...")
    logging.getLogger("rq.worker").warning("a warning")

    (line,) = said(capsys)
    assert "a warning" in line


def test_a_child_logs_under_its_own_name_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    pools.begin_log("text", "pool")
    pools.begin_log("text", "worker-1")

    log.info("here")

    (line,) = said(capsys)
    assert "worker-1: here" in line
    assert logging.getLogger().handlers[0].stream is sys.stderr  # type: ignore[attr-defined]
