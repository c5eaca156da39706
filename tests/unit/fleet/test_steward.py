"""A steward goes on, whatever goes wrong, says so once, and a probe reads its signs of life."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import ServerGone, ServerRefuses
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.fleet import steward as stewards
from graflow_ckpt.fleet.board import Board, Order
from graflow_ckpt.fleet.health import (
    PoolFacts,
    WorkerFacts,
    health,
    hears,
    pools,
    sign,
    sign_off,
    try_queue,
    try_session,
    worker_facts,
)
from graflow_ckpt.fleet.lists import POOLS, pool_key
from graflow_ckpt.fleet.steward import Charge, Complaints, Steward
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.processes import describe, myself
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_state, write_state
from tests.proxy import Proxy
from tests.servers import Server, free_port
from tests.stretch import until
from tests.unit.fleet.played import dead
from tests.unit.sessions.pair import SESSION, Plain


def charge_at(url: str) -> Charge:
    worker, own, parent = Board(3).lines
    worker.begin(os.getpid())
    return Charge("p", url, url, ("default",), time.time(), [("worker-1", worker)], parent, own)


@contextmanager
def at_work(charge: Charge) -> Iterator[Steward]:
    steward = Steward(charge)
    ear, mouth = os.pipe()
    thread = threading.Thread(target=steward.run, args=(ear,))
    thread.start()
    try:
        yield steward
        assert thread.is_alive(), "it has given up"
    finally:
        charge.line.tell(Order.LEAVE, 0.0)
        os.write(mouth, b"!")
        thread.join(10)
        os.close(ear)
        os.close(mouth)


def signs(url: str) -> list[float]:
    try:
        with closing(open_link(url)) as link:
            return [pool.age for pool in pools(link)]
    except ServerGone:
        return []


def test_it_says_once_a_second_that_the_pool_is_alive(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stewards, "SIGN", 0.05)
    with at_work(charge_at(redis_url)):
        until(lambda: signs(redis_url))
        (before,) = signs(redis_url)
        until(lambda: signs(redis_url)[0] < before + 0.05)


def test_it_survives_a_server_that_dies_and_says_so_once(
    own_redis: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stewards, "AWAY", 0.01)
    server = own_redis()
    with at_work(charge_at(server.url)):
        until(lambda: signs(server.url))
        server.kill()
        until(lambda: "a round failed" in caplog.text)
        server.start()
        until(lambda: signs(server.url))

    assert caplog.text.count("a round failed") == 1


def test_after_a_failover_behind_its_address_it_is_at_the_new_master(
    own_redis: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stewards, "AWAY", 0.01)
    former, master = own_redis(), own_redis()
    with Proxy(former) as proxy, at_work(charge_at(proxy.url)):
        until(lambda: signs(former.url))
        proxy.server = master  # new connections are led there, and nobody closes those that are open
        former.ask("REPLICAOF", "127.0.0.1", 1)

        until(lambda: signs(master.url))


def test_it_survives_faults_of_its_own(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    charge = charge_at(redis_url)
    with at_work(charge) as steward:
        broken = stewards.Chore("what cannot be done", 0.01, lambda: 1 / 0)
        steward._chores.append(broken)
        until(lambda: "what cannot be done" in caplog.text)
        until(lambda: signs(redis_url))

    assert "ZeroDivisionError" in caplog.text  # with where it was


FAILING = """
import os, signal, sys
from functools import partial
from graflow_ckpt.fleet import steward as stewards
from graflow_ckpt.fleet.board import Board, Order
from graflow_ckpt.fleet.worker import fork

stewards.AWAY = 60.0
worker, own, parent = Board(3).lines
charge = stewards.Charge("p", "nowhere", "nowhere", (), 0.0, [("worker-1", worker)], parent, own)
pid = fork(partial(stewards.steward, charge))
for line in sys.stdin:
    if line == "leave\\n":
        own.tell(Order.LEAVE, 0.0)
    os.kill(pid, signal.SIGTERM)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_steward_that_cannot_begin_hears_the_order_to_stop_and_does_not_spin_until_then() -> None:
    pipes: Any = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FAILING], cwd=ROOT, **pipes) as process:
        try:
            for word in ("again", "leave"):  # the first signal comes without an order
                while process.stderr.readline() != "the steward starts anew\n":
                    pass
                process.stdin.write(f"{word}\n")
                process.stdin.flush()
            process.stdin.close()

            assert process.wait(20) == 0
            assert "the steward starts anew" not in process.stderr.read()
        finally:
            process.kill()


def test_a_signal_ends_one_wait() -> None:
    ear, mouth = os.pipe()
    os.write(mouth, b"!!")

    stewards._wait(ear, 60.0)

    assert select.select([ear], [], [], 0.0)[0] == []
    os.close(ear)
    os.close(mouth)


def test_the_same_trouble_is_said_once_a_minute_with_how_often_it_came(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    complaints = Complaints()
    for _ in range(5):
        complaints.say("a round", ValueError("broken"))
    complaints.say("a round", KeyError("another"))
    monkeypatch.setattr(stewards, "SAID", 0.0)
    complaints.say("a round", ValueError("broken"))

    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [
        "a round failed: broken",
        "a round failed: 'another'",
        "a round failed: broken (4 more times in the last minute)",
    ]


# --- forks ------------------------------------------------------------------------------


ROOT = Path(__file__).parents[3]

PROLOGUE = """
import atexit, os, signal, sys, time
from graflow_ckpt.fleet.worker import fork
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("lambda: 3", 3),
        ("lambda: sys.exit(4)", 4),
        ("lambda: sys.exit()", 0),
        ("lambda: 1 / 0", 1),
        ("lambda: os.kill(os.getpid(), 9)", -9),
    ],
)
def test_a_child_ends_with_the_status_of_its_body(body: str, status: int) -> None:
    done = run(f"pid = fork({body}); print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")

    assert done.stdout.strip() == str(status), done.stderr


def test_what_a_child_has_printed_is_not_lost_and_the_parent_s_not_said_twice() -> None:
    done = run("sys.stdout.write('parent ')\nos.waitpid(fork(lambda: sys.stdout.write('child ') and 0), 0)")

    assert done.stdout == "parent child "


def test_the_parent_s_exit_handlers_are_the_parent_s() -> None:
    done = run("atexit.register(print, 'bye'); pid = fork(lambda: 0); os.waitpid(pid, 0)")

    assert done.stdout.split() == ["bye"]


def test_a_thread_that_does_not_end_keeps_no_child() -> None:
    done = run(
        "import threading\n"
        "def body():\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    return 5\n"
        "pid = fork(body); print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )

    assert done.stdout.strip() == "5"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs handles of processes")
def test_a_child_that_waits_for_its_parent_s_end_is_woken_by_it() -> None:
    done = run(
        "from graflow_ckpt.fleet import worker as forks\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    parent = os.getpid()\n"
        "    if not (child := os.fork()):\n"
        "        os.close(read)\n"
        "        forks.time.sleep = lambda seconds: os.write(write, b'it looks, again and again')\n"
        "        os.write(write, b'waits ')\n"
        "        forks._watch(parent)\n"
        "    os.read(read, 6)\n"
        "    while open(f'/proc/{child}/stat').read().rpartition(') ')[2][0] != 'S': pass\n"
        "    os._exit(0)\n"
        "os.close(write)\n"
        "os.wait()\n"
        "print(os.read(read, 100))"  # when it has ended
    )

    assert done.stdout.strip() == "b''", done.stdout + done.stderr


def test_a_child_whose_parent_was_quicker_leaves_at_once() -> None:
    done = run(
        "from graflow_ckpt.fleet import worker as forks\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    forks.die_with(1)\n"  # as if its parent had ended meanwhile, and init had it now
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )

    assert done.stdout.strip() == "1"


def test_workers_do_not_draw_the_same_random_numbers() -> None:
    done = run(
        "import numpy, random\n"
        "numpy.random.seed(1); random.seed(1)\n"
        "def body():\n"
        "    print(numpy.random.random(), random.random(), flush=True)\n"
        "    return 0\n"
        "for _ in range(2): os.waitpid(fork(body), 0)"
    )

    drawn = done.stdout.split()
    assert len(set(drawn)) == 4, done.stdout + done.stderr


# --- signs of life --------------------------------------------------------------------


def worker(owner: Owner, session: str = "") -> WorkerFacts:
    token = "e1t1" if session else ""
    return WorkerFacts("worker-1", owner, "busy" if session else "idle", session, token, 0.5, 3)


def pool(name: str = "p", owner: Owner | None = None, *workers: WorkerFacts, **changed: Any) -> PoolFacts:
    facts = PoolFacts(
        name, owner or myself(), myself(), ("default",), time.time(), "1", "3.11",
        False, 0, workers or (worker(myself()),), {"taken": 0},
    )  # fmt: skip
    return replace(facts, **changed)


def test_what_a_pool_says_of_itself_others_read(link: RedisLink) -> None:
    said = pool("p", None, worker(myself(), "s"))

    sign(link, said)

    (found,) = pools(link)
    assert replace(found, age=0.0) == said
    assert 0 <= found.age < 5


def test_a_pool_that_has_ended_is_not_there(link: RedisLink) -> None:
    sign(link, pool())
    sign_off(link, "p")

    assert pools(link) == []


def test_a_line_of_the_board_becomes_facts() -> None:
    line = Board(1).lines[0]
    line.begin(os.getpid())
    line.note("s", "e1t1")

    facts = worker_facts("worker-1", line)

    assert (facts.session, facts.token, facts.state, facts.slices) == ("s", "e1t1", "busy", 1)
    assert facts.owner.started == describe(os.getpid()).started


@pytest.mark.parametrize(
    ("there", "well", "words"),
    [
        ([pool("p", None, worker(myself()), worker(myself(), "s"))], True, "2 workers, 1 busy, on default"),
        ([], False, "No pool"),
        ([pool(owner=replace(myself(), boot="another machine"))], False, "No pool"),
        ([pool(owner=replace(myself(), pid_ns="another container"))], False, "No pool"),
        ([pool(owner=dead())], False, "parent"),
    ],
    ids=["well", "no pool", "of another machine", "of another container", "whose parent is gone"],
)
def test_whether_pools_are_well_is_said(
    redis_url: str, link: RedisLink, there: list[PoolFacts], well: bool, words: str
) -> None:
    for one in there:
        sign(link, one)

    found, text = health(redis_url)

    assert found is well
    assert words in text


def test_a_worker_that_is_gone_is_named(redis_url: str, link: RedisLink) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    owner = describe(process.pid)
    sign(link, pool("p", None, worker(owner)))
    before = health(redis_url)[0]
    process.kill()
    process.wait()

    well, text = health(redis_url)

    assert before
    assert not well
    assert str(owner.pid) in text


def test_a_pool_that_gives_no_sign_is_not_well(redis_url: str, link: RedisLink) -> None:
    sign(link, pool())
    client: Any = link.client
    client.zincrby(POOLS, -20_000, "p")

    well, text = health(redis_url)

    assert not well
    assert "no sign of life for 20 s" in text


def test_a_sign_does_not_outlive_its_time(link: RedisLink) -> None:
    sign(link, pool())

    assert 0 < link.client.pttl(pool_key("p")) <= 10_000  # type: ignore[operator]


def test_of_several_pools_those_of_the_queues_are_asked(redis_url: str, link: RedisLink) -> None:
    sign(link, pool("well"))
    sign(link, pool("ill", dead(), queues=("gpu",)))

    assert health(redis_url, ["default"])[0]
    assert not health(redis_url, ["gpu"])[0]
    assert not health(redis_url)[0]


def test_a_server_that_is_away_is_said_without_a_password() -> None:
    well, text = health(f"redis://:hidden-word@127.0.0.1:{free_port()}/0")

    assert not well
    assert "127.0.0.1" in text
    assert "hidden-word" not in text


# --- the trial --------------------------------------------------------------------------


NEEDED = ["-@all", "+@read", "+@write", "+@connection", "+@scripting", "+@transaction", "+info", "+time"]
KEYS = ("~graflow:*", "~rq:*")


def server_of(own_redis: Callable[..., Server], *rights: str) -> tuple[Server, str]:
    server = own_redis()
    server.ask("ACL", "SETUSER", "worker", "reset", "on", ">hunter2", *KEYS, "resetchannels", *rights)
    return server, server.url.replace("redis://", "redis://worker:hunter2@")


@pytest.mark.parametrize("channels", [True, False])
def test_a_user_of_the_documented_rights_works_and_leaves_nothing(
    own_redis: Callable[..., Server], channels: bool
) -> None:
    server, url = server_of(own_redis, *NEEDED, *(["+@pubsub", "&graflow:*"] if channels else []))
    link = open_link(url)

    try_session(link)
    try_queue(Carrier(link))

    assert hears(link) is channels
    assert server.client().keys() == []


@pytest.mark.parametrize("lacks", ["expire", "zpopmin", "hincrby", "rpush", "lrange", "rename", "set"])
def test_a_right_that_is_lacking_is_named(own_redis: Callable[..., Server], lacks: str) -> None:
    _, url = server_of(own_redis, *NEEDED, f"-{lacks}")
    link = open_link(url)

    with pytest.raises(ServerRefuses, match=f"'{lacks}'"):
        try_session(link)


def test_an_end_whose_expiry_is_refused_is_an_end(own_redis: Callable[..., Server]) -> None:
    """What stands behind the writes of a commit may be refused without it."""
    _, url = server_of(own_redis, *NEEDED, "-expire")
    link = open_link(url)
    write_state(link, SessionState(SESSION), Plain(), {"ttl": "60", "kept": "60"}, verb="create", flags="f")
    outside = RedisSession(link, SESSION, Plain())

    outside.commit([("claim", 0)])

    assert read_state(link, SESSION, Plain()).status == "completed"
